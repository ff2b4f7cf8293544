"""A sample of the scenarios of all back-ends on a local Spark, in stages and in one task; `make conformance` runs all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.engines import Engine
from conformance.scenarios import SAMPLE_EXAMPLES, ConformanceScenario, list_scenarios
from headrace.backends.spark import backend

pytestmark = pytest.mark.spark


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a blocking callback is given up
@pytest.mark.parametrize("scenario", list_scenarios(SAMPLE_EXAMPLES, sample_of="rdd"), ids=lambda scenario: scenario.name)
def test_scenario(spark: Any, tmp_path: Path, scenario: ConformanceScenario) -> None:
    scenario.run(Engine("rdd", {"spark": spark}, str(tmp_path), tmp_path), f"{tmp_path}/scenario")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a blocking callback is given up
@pytest.mark.parametrize("scenario", list_scenarios(SAMPLE_EXAMPLES, sample_of="rdd"), ids=lambda scenario: scenario.name)
def test_scenario_in_one_task(spark: Any, tmp_path: Path, scenario: ConformanceScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "SMALL_BATCH_ROWS", 1_000_000)
    monkeypatch.setattr(backend, "SMALL_BATCH_STATE_BYTES", 1 << 30)
    scenario.run(Engine("rdd", {"spark": spark}, str(tmp_path), tmp_path), f"{tmp_path}/scenario")
