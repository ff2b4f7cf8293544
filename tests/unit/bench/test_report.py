"""The report: valid plotly figures with tables, reported failures, and no network requests."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
import synthetic

from headrace.bench.cluster import BenchCluster
from headrace.bench.measure.statistics import ConfidenceInterval
from headrace.bench.report import page as pages
from headrace.bench.report.figures import compute_read_rate, draw_rates, draw_search
from headrace.bench.report.groups import ResultCell, ScenarioGroup, group_runs, order_systems
from headrace.bench.report.page import FIGURES, load_plotly_js, render_page, write_report
from headrace.bench.report.plots import (
    ReportFigure,
    colour_of,
    format_bytes,
    format_number,
    format_rate,
    format_ratio,
    format_scaled,
    format_seconds,
    make_amount_axis,
    make_line,
    make_log_axis,
    spread_labels,
)
from headrace.bench.report.summary import make_summary_table, write_headlines
from headrace.bench.result import ThroughputSeries
from headrace.bench.scenarios.scenario import load_scenario
from headrace.errors import HeadraceError

RUNS = synthetic.runs()
GROUPS = group_runs(RUNS)
AGGREGATION, SC1, PROFIT, JOIN, BY_NODES = GROUPS


@pytest.fixture(scope="module")
def text() -> str:
    return render_page(RUNS)


@pytest.fixture(scope="module")
def elements(text: str) -> ElementParser:
    parser = ElementParser()
    parser.feed(text)
    return parser


def draw_figures(group: ScenarioGroup) -> dict[str, ReportFigure]:
    return {figure.name: figure for figure in (draw(group) for draw in FIGURES) if figure is not None}


def find_cell(group: ScenarioGroup, sut: str, value: int = 1) -> ResultCell:
    return next(candidate for candidate in group.cells_of(sut) if group.parameter_of(candidate) == value)


def test_repeats_are_grouped_into_one_cell():
    assert [group.name for group in GROUPS] == ["aggregation", "sc1", "profit", "join", "by-nodes-join"]
    assert len(AGGREGATION.cells) == 13
    headrace_cell = find_cell(AGGREGATION, "headrace")
    rates = [run.figures.sustainable_rate for run in headrace_cell.runs]
    assert headrace_cell.sustainable_rate is not None
    assert headrace_cell.sustainable_rate.mean == pytest.approx(sum(rates) / 3)
    assert headrace_cell.sustainable_rate.half_width > 0
    assert headrace_cell.typical_run is not None
    assert headrace_cell.typical_run.figures.sustainable_rate == sorted(rates)[1]


def test_a_group_varies_queries_or_keys():
    assert (AGGREGATION.parameter.units, AGGREGATION.parameter_values) == ("queries", [1, 8, 64])
    assert (PROFIT.parameter.units, PROFIT.parameter_values) == ("keys", [10, 1000, 1_000_000])
    assert PROFIT.describe_cell(find_cell(PROFIT, "limit", 10)) == "1 query and 10 keys"


def test_runs_by_nodes_are_compared_by_the_rate_of_a_node():
    """Rates 7.1 M, 7.1 M · 2 · 0.9 and 7.1 M · 4 · 0.7, each within 3 %; flink failed on four nodes."""
    assert (BY_NODES.parameter.units, BY_NODES.parameter_values) == ("nodes", [1, 2, 4])
    assert BY_NODES.describe_cell(find_cell(BY_NODES, "flink", 2)) == "1 query on 2 nodes"
    figures = draw_figures(BY_NODES)
    assert figures["rate"].title == "Sustainable rate by number of nodes"
    efficiency = figures["efficiency"]
    lines = {trace["name"]: trace for trace in efficiency.panels[0].spec["data"]}
    assert lines["headrace"]["x"] == [1, 2, 4]
    assert lines["headrace"]["y"] == pytest.approx([1.0, 0.9, 0.7], rel=0.07)
    assert lines["flink"]["x"] == [1, 2]
    assert "spark" not in lines  # a single number of nodes
    shares = [row[3] for row in efficiency.rows if row[0] == "headrace"]
    assert [row[:2] for row in efficiency.rows] == [
        ("headrace", "1"),
        ("headrace", "2"),
        ("headrace", "4"),
        ("flink", "1"),
        ("flink", "2"),
    ]
    lines_of_text = write_headlines(BY_NODES)
    assert re.search(r"to 1 query on 4 nodes, headrace has \d\.\d\d × the rate: ", lines_of_text[-1])
    assert lines_of_text[-1].endswith(f"{shares[-1]} of the rate of a node is kept.")
    assert "efficiency" not in draw_figures(AGGREGATION)


def test_nodes_of_another_size_are_another_section():
    """Their runs are no repeats."""
    scenario = load_scenario("by-nodes-join")
    clusters = [BenchCluster(2, 0.5), BenchCluster(2, 0.25), BenchCluster(master="spark://127.0.0.1:7077"), BenchCluster(1, 0.5)]
    groups = group_runs([synthetic.run(scenario.with_overrides(cluster=cluster), "headrace") for cluster in clusters])
    places = ["nodes of 0.5 cores", "nodes of 0.25 cores", "on spark://127.0.0.1:7077"]
    assert [group.place for group in groups] == places
    assert [len(group.cells) for group in groups] == [2, 1, 1]
    text = render_page([run for group in groups for cell in group.cells for run in cell.runs])
    assert len(set(re.findall(r'<section id="(by-nodes-[^"]+)"', text))) == 3
    assert all(place in text for place in places)


def test_systems_have_a_fixed_order_and_distinct_colours():
    assert order_systems({"storm", "limit", "headrace", "flink", "beam"}) == ["headrace", "flink", "limit", "beam", "storm"]
    known = ["headrace", "flink", "limit", "beam", "storm"]
    assert len({colour_of(sut, known) for sut in known}) == 5


def test_colours_of_unknown_systems_are_assigned_by_position():
    unknown = ["a", "b", "c", "d"]
    assert [colour_of(sut, ["headrace", *unknown]) for sut in unknown] == [f"var(--other-{n})" for n in (1, 2, 3, 1)]
    assert colour_of("a") == "var(--other-1)"


def test_the_line_of_headrace_is_thicker_than_others():
    own, other = (make_line(sut, ["headrace", "flink"], x=[1]) for sut in ("headrace", "flink"))
    assert own["line"] == {"color": "var(--headrace)", "width": 2.5}
    assert other["line"] == {"color": "var(--flink)", "width": 1.75}
    assert (own["x"], own["showlegend"]) == ([1], False)


def test_headlines_compare_systems_and_report_failures():
    lines = write_headlines(AGGREGATION)
    assert re.match(r"With 1 query, headrace sustains 7\.\d\d M rows/s: 6\.\d\d × flink, ", lines[0])
    assert "flink failed" in lines[2]
    assert re.match(r"From 1 query to 64 queries, headrace keeps \d+ % of its rate\.", lines[3])
    assert write_headlines(JOIN) == []


def test_the_summary_omits_empty_columns():
    header, rows = make_summary_table(AGGREGATION)
    assert "deployment p95" not in header
    assert "deployment p95" in make_summary_table(SC1)[0]
    assert len(rows) == 12
    headrace_row = rows[find_cell(AGGREGATION, "headrace")]
    assert headrace_row[:2] == ("headrace", "1")
    assert re.fullmatch(r"7\.\d\d ± 0\.\d\d M", headrace_row[2])
    assert headrace_row[3] == "–"
    assert re.fullmatch(r"6\.\d\d ×", rows[find_cell(AGGREGATION, "flink")][3])


def test_fixed_rates_are_labelled_as_offered():
    scenario = load_scenario("over-saturation").with_overrides(seconds=12)
    fixed_rate_run = synthetic.run(scenario, "spark")
    assert fixed_rate_run.figures is not None
    fixed_figures = replace(fixed_rate_run.figures, sustainable_rate=fixed_rate_run.figures.offered_rate)
    failed_run = synthetic.run(scenario, "spark", 2, failed="gone")
    runs = [
        type(fixed_rate_run)(fixed_rate_run.sut, fixed_rate_run.scenario, 1, 1, fixed_figures, fixed_rate_run.origin),
        failed_run,
    ]
    (group,) = group_runs(runs)
    _, rows = make_summary_table(group)
    assert rows[group.cells[0]][2].endswith("(offered, not sustained; 1 of 2 runs failed)")
    assert draw_figures(group)["rate"].title == "Read rate"
    assert draw_search(group) is None
    assert "fixed rate" in render_page(runs)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_plotly_accepts_every_figure(group):
    for figure in draw_figures(group).values():
        assert figure.panels
        for panel in figure.panels:
            spec = json.loads(re.sub(r"(fade\()?var\(--[\w-]+\)\)?", "#123456", json.dumps(panel.spec)))
            assert go.Figure(spec).data  # plotly raises for unknown properties


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_figure_has_a_table(group):
    for figure in draw_figures(group).values():
        assert figure.rows
        assert all(len(row) == len(figure.header) for row in figure.rows)
        assert figure.title


def test_groups_have_all_figures():
    everything = {"rate", "two-times", "latency-distribution", "latency-time", "reading", "backlog", "resources", "search"}
    everything |= {"data-throughput", "components"}
    assert set(draw_figures(AGGREGATION)) == everything
    assert set(draw_figures(SC1)) == everything | {"deployment"}
    assert len(draw_figures(AGGREGATION)["resources"].panels) == 9


def test_a_failed_run_is_drawn_without_a_value():
    figure = draw_rates(AGGREGATION)
    assert figure is not None
    crosses = figure.panels[0].spec["data"][-1]
    assert crosses["x"] == [64]
    assert crosses["hovertext"] == ["flink failed: the job failed: Insufficient number of network buffers"]
    assert ("flink", "64 queries", "failed: the job failed: Insufficient number of network buffers", "") in figure.rows
    flink = next(trace for trace in figure.panels[0].spec["data"] if trace.get("name") == "flink")
    assert flink["x"] == [1, 8]
    bars = draw_rates(JOIN)
    assert bars is not None
    assert bars.panels[0].spec["data"][0]["text"][0] == "failed"


def test_a_failed_group_has_only_the_search_figure():
    (group,) = group_runs([synthetic.run(load_scenario("join"), "headrace", failed="no joins")])
    assert set(draw_figures(group)) == {"search"}
    assert "no joins" in render_page(group.cells[0].runs)


class ElementParser(HTMLParser):
    """Records elements and checks that tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "link", "img", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag


def test_the_page_is_well_formed_and_self_contained(elements):
    assert elements.open == []
    fetched = [
        (tag, attrs) for tag, attrs in elements.seen if {"src", "data", "srcset"} & set(attrs) or tag in {"link", "iframe", "img"}
    ]
    assert fetched == []
    assert all((attrs["href"] or "").startswith("#") for _, attrs in elements.seen if "href" in attrs)
    ids = [attrs["id"] for _, attrs in elements.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {(attrs["href"] or "")[1:] for _, attrs in elements.seen if "href" in attrs} <= set(ids)


def test_the_page_is_accessible(text, elements):
    plots = [attrs for _, attrs in elements.seen if attrs.get("class") == "plot"]
    assert plots
    assert all(attrs["role"] == "img" and (attrs["aria-label"] or "").endswith("table below.") for attrs in plots)
    assert sum(tag == "figure" for tag, _ in elements.seen) == sum(tag == "details" for tag, _ in elements.seen)
    assert "prefers-color-scheme: dark" in text
    for variable in set(re.findall(r"var\((--[\w-]+)\)", text.split("<body>")[1].split("<script>")[0])):
        assert text.count(f"{variable}:") >= 1, variable


def test_the_page_shows_machine_versions_and_settings(text):
    for expected in (
        "2 cores · 7.6 GiB",
        "0ab491a",
        "apache-flink 2.3.0",
        "parallelism 2",
        "Insufficient number of network buffers",
    ):
        assert expected in text
    assert "Event-time latency</dt>" in text


def test_failure_messages_are_escaped():
    script = "</script><script>alert(1)</script>"
    page = render_page(
        [
            synthetic.run(load_scenario("sc1").with_overrides(seconds=12), "flink", failed=script),
            synthetic.run(load_scenario("sc1"), "spark"),
        ]
    )
    assert "<script>alert" not in page
    assert "&lt;/script&gt;" in page


def test_the_page_has_a_metadata_tag(text: str):
    meta = re.search(r'<meta name="headrace-report" content="([^"]*)">', text[:20_000])
    assert meta is not None
    card = json.loads(html.unescape(meta[1]))
    assert card["scenarios"] == [group.name for group in GROUPS]
    assert card["title"] == ", ".join(group.title for group in GROUPS)
    assert (card["runs"], card["failed"]) == (len(RUNS), sum(run.failure is not None for run in RUNS))
    assert card["started_at"] == max(run.origin.started_at for run in RUNS)
    assert card["headline"] == write_headlines(AGGREGATION)[0]


def test_the_report_is_written_next_to_the_result(tmp_path):
    synthetic.append_run(tmp_path, RUNS[0])
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_result_without_runs_is_refused(tmp_path):
    (tmp_path / "result.json").write_text('{"format": 1, "runs": []}')
    with pytest.raises(HeadraceError, match="has no runs"):
        write_report(tmp_path)


def test_a_missing_plotly_raises_with_an_install_hint(monkeypatch):
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name)

    assert "plotly.js" in load_plotly_js()[:200]
    assert "</script" not in load_plotly_js().lower()
    monkeypatch.setattr(pages.resources, "files", missing)
    with pytest.raises(HeadraceError, match="plotly") as refusal:
        load_plotly_js()
    assert "headrace[bench]" in refusal.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_number(7.084), "7.08"),
        (format_number(0.4741), "0.474"),
        (format_number(1234.5), "1,234"),
        (format_number(0), "0"),
        (format_number(99.96), "100"),
        (format_scaled(7_084_000), "7.08 M"),
        (format_scaled(999.9), "1.00 k"),
        (format_scaled(12), "12.0"),
        (format_seconds(0.711), "711 ms"),
        (format_seconds(2.5), "2.50 s"),
        (format_seconds(None), "–"),
        (format_rate(ConfidenceInterval(7.084e6, 4.07e5, 3, 0.95)), "7.08 ± 0.41 M"),
        (format_rate(ConfidenceInterval(627e3, None, 1, 0.95)), "627 k"),
        (format_rate(None), "–"),
        (format_bytes(2.9 * 2**30), "2.90 GiB"),
        (format_bytes(5 * 2**20), "5.00 MiB"),
        (format_ratio(456.4), "456 ×"),
        (format_ratio(6.36), "6.36 ×"),
    ],
)
def test_numbers_are_formatted_with_units(text, expected):
    assert text == expected


def test_labels_do_not_overlap():
    places = spread_labels({"a": 1.0, "b": 1.02, "c": 1.04, "d": 5.0}, 0.5)
    assert [places[name] for name in "abc"] == pytest.approx([0.52, 1.02, 1.52])
    assert places["d"] == 5.0


def test_axes_fit_their_values():
    assert make_log_axis("s", [0.5, 2])["tickvals"] == [0.5, 1.0, 2.0]
    assert make_log_axis("s", [1, 1e6])["ticktext"][-1] == "1 M"
    assert len(make_log_axis("s", [0.45, 0.6])["tickvals"]) >= 3
    assert make_amount_axis("rows/s", [1, 2, 3], is_rate=True)[0]["range"][0] == 0
    assert make_amount_axis("rows/s", [0.001, 100.0], is_rate=True)[0]["type"] == "log"
    assert make_amount_axis("cores", [0.001, 100.0], is_rate=False)[0]["range"][0] == 0
    assert make_amount_axis("rows/s", [0.0, 0.0], is_rate=True)[1] == 0.0


def test_the_read_rate_is_computed_over_a_second():
    series = ThroughputSeries((0.0, 0.5, 1.0, 1.5, 2.0), (0, 0, 0, 0, 0), (0, 10, 100, 150, 500))
    assert compute_read_rate(series) == ([1.0, 2.0], [100.0, 400.0])


def test_the_page_names_the_first_and_the_last_day_of_the_runs():
    run = synthetic.run(load_scenario("aggregation").with_overrides(queries=1), "headrace")
    days = ["2026-11-16", "2026-11-18", "2026-11-17"]
    later = [replace(run, origin=replace(run.origin, started_at=f"{day}T10:00:00+00:00")) for day in days]
    assert "<dt>date</dt><dd>2026-11-16 to 2026-11-18</dd>" in render_page(later)
    assert "<dt>date</dt><dd>2026-11-18</dd>" in render_page(later[1:2])


def test_data_throughput_names_the_slowest_query_and_the_silent_ones():
    rows = {row[:2]: row[2:] for row in draw_figures(AGGREGATION)["data-throughput"].rows}
    _slowest, name, _overall, silent = rows["headrace", "64 queries"]
    assert (name, silent) == ("q63", "4")
    header, summary = make_summary_table(AGGREGATION)
    row = summary[find_cell(AGGREGATION, "headrace", 8)]
    assert {"slowest query, rows/s", "overall, rows/s"} <= set(header)
    assert row[header.index("overall, rows/s")] != row[header.index("slowest query, rows/s")]


def test_the_sustainable_rate_of_requests_has_a_figure_and_its_search_its_unit():
    measured = synthetic.run(load_scenario("query-throughput"), "headrace")
    trials = tuple(replace(verdict, rate=verdict.rate / 1e5, unit="requests/s") for verdict in measured.trials)
    figures = replace(measured.figures, sustainable_rate=None, sustainable_request_rate=71.0)
    failed = replace(synthetic.run(load_scenario("query-throughput"), "flink", failed="too slow"), trials=trials)
    (group,) = group_runs([replace(measured, outcome=figures, trials=trials), failed])
    drawn = draw_figures(group)
    assert drawn["query-throughput"].rows == (("headrace", "25 queries", "71.0"), ("flink", "25 queries", "failed: too slow"))
    assert drawn["search"].header[3] == "requests/s"
    assert {trial.unit for trial in failed.trials} == {"requests/s"}
    header, rows = make_summary_table(group)
    assert rows[find_cell(group, "headrace", 25)][header.index("requests/s")] == "71.0"
    assert "Sustainable query throughput" in render_page(group.cells[0].runs)


def test_the_work_of_headrace_is_shown_by_component():
    figure = draw_figures(AGGREGATION)["components"]
    assert figure.rows[:3] == (
        ("headrace", "1 query", "join", "6.00 s", "60 %"),
        ("headrace", "1 query", "selection", "3.00 s", "30 %"),
        ("headrace", "1 query", "other", "1.00 s", "10 %"),
    )
    assert [trace["name"] for trace in figure.panels[0].spec["data"]] == ["join", "selection", "other"]
