"""Run headrace with sliding joins that are optimized one by one: each has its own best plan, equal sub-plans are shared."""

from __future__ import annotations

from headrace.bench.systems.headrace import HeadraceAdapter
from headrace.bench.systems.process import serve

if __name__ == "__main__":
    serve(HeadraceAdapter(sliding_plan="common"))
