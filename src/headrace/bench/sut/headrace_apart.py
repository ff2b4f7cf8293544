"""Run headrace with sliding joins that share only the scan of the streams: each has its own state stores and probes."""

from __future__ import annotations

from headrace.bench.sut.headrace import HeadraceAdapter
from headrace.bench.sut.process import serve

if __name__ == "__main__":
    serve(HeadraceAdapter("none"))
