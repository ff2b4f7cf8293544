"""docs/benchmark.md documents every scenario, every key of a scenario file and every field of a result."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import synthetic

from headrace.bench.cluster import BenchCluster
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.queries.sets import QUERY_GENERATORS
from headrace.bench.scenarios.ad_hoc import SCHEDULE_KINDS
from headrace.bench.scenarios.scenario import RateSearchSettings, list_scenarios, load_scenario, parse_scenario

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "benchmark.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```ini\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[0]


def test_every_scenario_is_documented():
    table = TEXT.split("## Scenarios")[1].split("`--queries N`")[0]
    documented = {name for row in re.findall(r"^\| ([\w, -]+) \|", table, re.MULTILINE) for name in row.split(", ")}
    assert set(list_scenarios()) == documented - {"scenario"}


def test_the_example_is_a_valid_scenario_with_every_key():
    scenario = parse_scenario("example", EXAMPLE, "example.toml")
    assert (scenario.peak_query_count, scenario.search) == (4, RateSearchSettings())
    assert scenario.cluster == BenchCluster(1)
    for field in [*fields(StreamSpec), *fields(RateSearchSettings), *fields(BenchCluster)]:
        assert field.name in {"name", "master"} or re.search(rf"^{field.name} = ", EXAMPLE, re.MULTILINE), field.name


@pytest.mark.parametrize("name", [*QUERY_GENERATORS, *SCHEDULE_KINDS])
def test_every_option_is_documented(name):
    kind = {**QUERY_GENERATORS, **SCHEDULE_KINDS}[name]
    rows = [line for line in TEXT.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
    assert rows
    assert all(re.search(rf"\b{field.name}\b", rows[-1]) for field in fields(kind))


def test_every_result_field_is_documented():
    good = synthetic.run(load_scenario("sc1").with_overrides(seconds=12), "headrace").to_json()
    bad = synthetic.run(load_scenario("sc1").with_overrides(seconds=12), "flink", failed="gone").to_json()
    names = {*good, *bad, *good["scenario"], *good["search"][0], *good["throughput"], *good["resources"]}
    names |= {*good["resources"]["series"][0], *good["event_time_latency_s"], *good["event_time_latency_s"]["series"]}
    names |= {
        *good["event_time_latency_s"]["histogram"],
        *good["deployment_latency_s"],
        *good["deployment_latency_s"]["series"][0],
    }
    documented = set(re.findall(r"`(\w+)`", TEXT.split("## result.json")[1]))
    assert names <= documented, names - documented
