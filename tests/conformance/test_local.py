"""All scenarios on the local back-end, in this process; few examples of the drawn ones, of which `tests/properties` has more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.engines import Engine, open_local
from conformance.scenarios import ConformanceScenario, list_scenarios


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with open_local(tmp_path) as running:
        yield running


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a blocking callback is given up
@pytest.mark.parametrize("scenario", list_scenarios(2), ids=lambda scenario: scenario.name)
def test_scenario(scenario: ConformanceScenario, engine: Engine):
    scenario.run(engine, f"{engine.root}/scenario")
