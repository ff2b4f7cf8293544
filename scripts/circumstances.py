# ruff: noqa: INP001  a module of the scripts in this folder
"""What a figure depends on besides the code under test: commit, store, machine, and other work on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from headrace.bench.result import current_commit


def sample_load() -> float:
    """Return the processes that ran or waited for a processor in the last minute, on average."""
    return round(os.getloadavg()[0], 1)


def describe_circumstances(store: str, loads: Sequence[float]) -> dict[str, Any]:
    """Return the entries of a result document; `loads` were sampled while it ran."""
    ordered = sorted(loads)
    middle = ordered[len(ordered) // 2] if ordered else None
    load = {"samples": list(loads), "median": middle, "most": ordered[-1] if ordered else None}
    return {"commit": current_commit(), "store": store, "cores": os.cpu_count(), "load": load}
