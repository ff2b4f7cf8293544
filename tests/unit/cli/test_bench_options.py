"""Options of `headrace bench`: what is refused before a system starts, and the table of the scaling measurement."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cli import bench


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "0"], "invalid --rate"),
        (["--rate", "-1"], "invalid --rate"),
        (["--rate", "5", "--search"], "invalid --rate"),
        (["--requests", "5"], "needs a scenario with a [request_search]"),
        (["--sut", "headrace,warp"], "unknown system in 'headrace,warp'"),
        (["--sut", " , "], "unknown system"),
        (["--queries", "1,many"], "write --queries 1,4"),
        (["--nodes", "two"], "write --nodes 1,4"),
        (["--master", "spark://h:1", "--nodes", "2"], "--master excludes --nodes"),
        (["--master", "spark://h:1", "--node-cores", "2"], "--master excludes --nodes"),
        (["--option", "mode"], "invalid --option: write NAME=VALUE"),
    ],
)
def test_options_that_are_refused(headrace, monkeypatch, tmp_path, words, message):
    monkeypatch.setattr(bench, "ScenarioRunner", lambda *_, **__: pytest.fail("a system was started"))
    refused = headrace("bench", "run", "aggregation", "--out", tmp_path / "out", *words)
    assert (refused.code, message in refused.err) == (1, True), refused.err


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments of measurements, which have fixed figures."""
    calls: list[tuple[Any, ...]] = []

    def measure(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments[:4])
        rates = {"headrace": {"1": 2_000_000.0, "64": 1_500_000.0}, "spark": {"64": 1_000.0}}
        return {"rows_per_second": rates, "machine": {"cores": 2}}

    monkeypatch.setattr(bench, "measure_scaling", measure)
    return calls


def test_rates_are_compared_with_that_of_one_query(headrace, measured):
    shown = headrace("bench", "scaling", "--queries", "64,1,64", "--rows", "10", "--rows-per-batch", "5", "--streaming-rows", "1")
    assert (shown.code, measured) == (0, [([1, 64], 10, 5, 1)])
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in shown.out.splitlines() if "000" in line]
    assert rows == [["headrace", "1", "2,000,000", "100%"], ["headrace", "64", "1,500,000", "75%"], ["spark", "64", "1,000"]]
    assert headrace("bench", "scaling", "--json").document["rows_per_second"]["spark"] == {"64": 1_000.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--queries", "one"], "is not a list of numbers"),
        *(([name, "0"], "must be positive") for name in ("--queries", "--rows", "--rows-per-batch", "--streaming-rows")),
    ],
)
def test_numbers_of_the_scaling_measurement_are_positive(headrace, measured, words, message):
    refused = headrace("bench", "scaling", *words)
    assert (refused.code, message in refused.err, measured) == (1, True, [])


def test_numbers_of_one_are_accepted(headrace, measured):
    ones = [word for name in ("--queries", "--rows", "--rows-per-batch", "--streaming-rows") for word in (name, "1")]
    assert (headrace("bench", "scaling", *ones).code, measured) == (0, [([1], 1, 1, 1)])
