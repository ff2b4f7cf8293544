"""Run headrace with sliding joins that share only the scan of the streams: each has its own state stores and probes."""

from __future__ import annotations

from headrace.bench.systems.headrace import HeadraceAdapter
from headrace.bench.systems.process import serve

if __name__ == "__main__":
    serve(HeadraceAdapter(sliding_plan="common", sliding_sharing=False))
