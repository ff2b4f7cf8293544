"""A sample of the scenarios of all back-ends on a local Spark, by RDDs; `make conformance` runs all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.engines import Engine
from conformance.scenarios import SAMPLE_EXAMPLES, ConformanceScenario, list_scenarios

pytestmark = pytest.mark.spark


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a blocking callback is given up
@pytest.mark.parametrize("scenario", list_scenarios(SAMPLE_EXAMPLES, sample_of="rdd"), ids=lambda scenario: scenario.name)
def test_scenario(spark: Any, tmp_path: Path, scenario: ConformanceScenario) -> None:
    scenario.run(Engine("rdd", {"spark": spark}, str(tmp_path), tmp_path), f"{tmp_path}/scenario")
