"""headrace where joins in SLIDING windows share nothing but the reading of streams: each has stores and probes of its own."""

from __future__ import annotations

from headrace.bench.sut.headrace import Headrace
from headrace.bench.sut.process import serve

if __name__ == "__main__":
    serve(Headrace("none"))
