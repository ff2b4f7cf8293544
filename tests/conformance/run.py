"""The runner: every scenario on a back-end, in this process."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from conformance.engines import ENGINES, Engine
from conformance.scenarios import list_scenarios


def run_engine(name: str, *, sample: bool, examples: int, only: str = "") -> dict[str, Any]:
    """Start a back-end and run the scenarios on it; return seconds and error of each."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, ENGINES[name](Path(folder)) as engine:
        return run_scenarios(engine, sample=sample, examples=examples, only=only)


def run_scenarios(engine: Engine, *, sample: bool, examples: int, only: str = "") -> dict[str, Any]:
    """Run the scenarios on a running back-end; return seconds and error of each."""
    report: dict[str, Any] = {}
    for number, scenario in enumerate(list_scenarios(examples, sample_of=engine.name if sample else "")):
        if only in scenario.name:
            place, start, error = f"{engine.root}/{number}", time.monotonic(), ""
            try:
                scenario.run(engine, place)
            except Exception:  # noqa: BLE001  whatever a scenario raises is its result
                error = traceback.format_exc()
            engine.clear(place)
            report[scenario.name] = {"seconds": round(time.monotonic() - start, 2), "error": error}
            print(f"{engine.name}  {'FAILED' if error else 'passed'}  {report[scenario.name]['seconds']:6.1f} s  {scenario.name}",
                  file=sys.stderr, flush=True)  # fmt: skip
    if not report:
        raise ValueError(f"no scenario for {engine.name} is selected")
    return report
