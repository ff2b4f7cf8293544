"""Run headrace without Spark: the local back-end, in the threads of one process."""

from __future__ import annotations

from headrace.bench.systems.headrace import HeadraceAdapter
from headrace.bench.systems.process import serve

if __name__ == "__main__":
    serve(HeadraceAdapter(backend="local"))
