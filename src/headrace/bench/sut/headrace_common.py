"""headrace where each join in SLIDING windows is worked off as is best for it alone, and only what is equal in them is shared."""

from __future__ import annotations

from headrace.bench.sut.headrace import Headrace
from headrace.bench.sut.process import serve

if __name__ == "__main__":
    serve(Headrace("common"))
