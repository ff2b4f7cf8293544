"""`headrace demo`: it ends after its duration, its summary is right, and all its queries bind."""

from __future__ import annotations

import io
import re
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, ConsoleDimensions

from headrace.cli.demo import declare_demo_streams, generate_queries, schedule_events
from headrace.cli.demo_view import format_status_line, render_screen, render_summary
from headrace.cli.explain import plan_queries
from headrace.connectors import GENERATORS, RateSource
from headrace.model.stream import Stream
from headrace.runtime.metrics import BatchReport
from headrace.session import Session
from headrace.sql import Catalog, bind_query

STREAMS = [Stream(name, GENERATORS[name].schema, "time") for name in ("purchases", "ads")]


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of the demo and of its streams count micro-batches, of two seconds each, however busy the machine is."""
    now, advance = [time.time()], Session.advance

    def advance_clock(session: Session, **options: Any) -> BatchReport:
        report = advance(session, **options)
        now[0] += 2
        return report

    def read_clock() -> float:
        return now[0]

    monkeypatch.setattr(Session, "advance", advance_clock)
    monkeypatch.setattr("headrace.cli.demo.time", SimpleNamespace(time=read_clock, monotonic=read_clock, sleep=time.sleep))
    monkeypatch.setattr("headrace.cli.demo.RateSource", partial(RateSource, clock=read_clock))
    monkeypatch.setattr("headrace.cli.demo._INTERVAL_SECONDS", 0.4 / 6)
    monkeypatch.setattr("headrace.cli.demo._TICK_SECONDS", 0.1 / 6)


@pytest.mark.usefixtures("fast_clock")
def test_the_demo_ends_and_prints_a_json_summary(headrace):
    result = headrace("demo", "--seconds", 20, "--queries", 10, "--rate", 1000, "--json", "--backend", "local")
    assert result.code == 0, result.err
    summary = result.document
    assert summary["queries"] == {"added": 10, "removed": 3, "live": 7, "failed": 0}
    assert summary["restarts"] == 0
    assert summary["rows"] > 0
    assert summary["warm_up_seconds"] > 0
    assert summary["results"] > 0
    assert 0 < summary["shared_operators"] < 10
    assert 0 < summary["deployment_seconds"]["median"] <= summary["deployment_seconds"]["max"]
    durations = [query["deployment_seconds"] for query in summary["by_query"].values()]
    live_durations = [duration for duration in durations if duration is not None]  # on a busy machine some are removed before
    assert live_durations == [round(duration, 4) for duration in live_durations]
    assert len(live_durations) >= 7
    assert "live queries" in result.err


@pytest.mark.usefixtures("fast_clock")
def test_a_checkpoint_by_url_makes_no_folder(headrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = headrace("demo", "--backend", "local", "--checkpoint", "hdfs://nn/ck")
    assert (refused.code, "checkpoint 'hdfs://nn/ck' has the unsupported scheme" in refused.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_prints_a_text_summary(headrace):
    result = headrace("demo", "--seconds", 1, "--queries", 2, "--rate", 1000, "--backend", "local")
    assert result.code == 0, result.err
    assert "2 queries, one pipeline, 0 restarts" in result.out
    assert "one shared pipeline" in result.out


def test_all_queries_bind_and_have_unique_names():
    queries = list(generate_queries(200))
    for query in queries:
        bind_query(query.sql, Catalog.of(STREAMS))
    assert len({query.name for query in queries}) == 200
    assert queries == list(generate_queries(200))


@pytest.mark.parametrize("number", [1, 2, 3, 20, 100])
def test_the_schedule_removes_only_live_queries(number):
    live = set()
    for event in schedule_events(number, 30):
        assert 0 <= event.at <= 0.9 * 30 + 1e-9
        assert (event.query.name in live) != event.add
        (live.add if event.add else live.remove)(event.query.name)
    assert len(live) >= number / 2


def test_queries_are_added_in_turn_and_seven_of_ten_stay():
    """Additions until 60 % of the length, removals from 50 % to 90 %; names are numbered from 1."""
    events = schedule_events(20, 100)
    additions, removals = ([event for event in events if event.add is add] for add in (True, False))
    assert [event.at for event in additions] == pytest.approx([3 * number for number in range(20)])
    assert [event.query.name.rpartition("_")[2] for event in additions] == [str(number) for number in range(1, 21)]
    assert len(removals) == 6
    assert (min(event.at for event in removals) > 50, max(event.at for event in removals)) == (True, pytest.approx(90))
    assert events == sorted(events, key=lambda event: event.at)
    assert not {event.query.name for event in removals} & {event.query.name for event in additions[10:]}, "only early ones"


def make_query(name: str, status: str, rows: int) -> SimpleNamespace:
    row = {"window_start": None, "window_end": 1, "total": 1234.5} if rows else {}
    handle = SimpleNamespace(deployment_seconds=0.25 * rows) if rows else None
    definition = SimpleNamespace(name=name, about=f"description of {name}")
    return SimpleNamespace(definition=definition, status=status, handle=handle, row_count=rows, latest_row=row)


def make_demo(*queries: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(
        live_count=sum(query.status == "live" for query in queries), length=60.0, elapsed_seconds=12.4, event_time_lag=0.5,
        deployment_seconds=[0.25, 0.5, 4.0], removed_count=sum(query.status == "removed" for query in queries),
        queries={query.definition.name: query for query in queries}, log=[(1.0, "first"), (2.0, "b"), (3.0, "c"), (4.0, "d")],
        meter=SimpleNamespace(rows_per_second=2_000_000.0, rows=5_000_000, median_batch_seconds=0.1, batches=7),
        shared_plans=SimpleNamespace(operators=[], queries={query.definition.name: None for query in queries}),
    )  # fmt: skip


def show(renderable: object, width: int = 130) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_screen_shows_figures_queries_and_the_log():
    demo = make_demo(make_query("q1", "removed", 3), make_query("q2", "live", 2))
    lines = show(render_screen(demo, ConsoleDimensions(130, 40)))
    assert lines[0].startswith("headrace  1 live queries, one pipeline, 0 restarts ━━━")
    assert lines[0].endswith(" 12 of 60 s")
    figures = next(line for line in lines if line.startswith("│"))
    assert [figure.strip() for figure in figures.split("│") if figure.strip()] == [
        "2.00 M rows/s", "100 ms", "500 ms", "1 live", "500 ms", "0 operators",
    ]  # fmt: skip
    assert len(figures) == 6 * (130 // 6 - 1) + 5, "six panels with a space between them"
    header = next(number for number, line in enumerate(lines) if "description" in line)
    assert re.split(r"  +", lines[header].strip()) == ["query", "description", "status", "live in", "results", "latest result"]
    assert [re.split(r"  +", line.strip()) for line in lines[header + 2 : header + 4]] == [
        ["q2", "description of q2", "live", "500 ms", "2", "NULL", "total 1,234.50"],
        ["q1", "description of q1", "removed", "750 ms", "3", "NULL", "total 1,234.50"],
    ]
    assert lines[header].startswith(" query   description ")
    assert len(lines[header + 1]) == 129, "the table is as wide as the screen"
    assert [line.split() for line in lines[-3:]] == [["2.0", "s", "b"], ["3.0", "s", "c"], ["4.0", "s", "d"]]


def test_a_small_screen_shows_the_newest_live_queries():
    queries = [make_query(f"q{number}", "removed" if number < 2 else "live", 0) for number in range(8)]
    lines = show(render_screen(make_demo(*queries), ConsoleDimensions(130, 10)))
    assert [line.split()[0] for line in lines if "description" in line] == ["query", "q5", "q6", "q7"]
    assert "  … and 5 more; 2 queries are removed" in lines


def test_queries_have_the_lines_that_operators_leave_free():
    """Of 40 lines, 24 are for all else, 6 of these for operators."""
    lines = show(
        render_screen(make_demo(*(make_query(f"q{number}", "live", 0) for number in range(30))), ConsoleDimensions(130, 40))
    )
    assert "  … and 8 more; 0 queries are removed" in lines


def test_figures_of_a_narrow_screen_are_cut():
    lines = show(render_screen(make_demo(), ConsoleDimensions(60, 40)), 60)
    assert any("│ slowest 4.0… │" in line for line in lines)


def test_the_screen_shows_which_queries_share_an_operator():
    text = "SELECT gem_pack, COUNT(*) AS n FROM TUMBLE(purchases, '1 second')"
    texts = {"q1": f"{text} GROUP BY 1", "q2": f"{text} GROUP BY 1", "q3": f"{text} WHERE price > 1 GROUP BY 1"}
    catalog = Catalog.of(STREAMS)
    plans = plan_queries(STREAMS, {name: bind_query(query, catalog) for name, query in texts.items()})
    demo = make_demo(make_query("q1", "live", 2))
    demo.shared_plans = plans
    lines = show(render_screen(demo, ConsoleDimensions(130, 40)))
    assert any("1 operators" in line for line in lines)
    shared = next(line for line in lines if " × " in line and "queries ×" not in line)
    assert shared.strip("│ ").startswith("3 × ")
    assert " by gem_pack of purchases · 2 predicates · q1, q2, q3" in shared
    assert not any("more" in line for line in lines)


def test_the_status_line_has_all_figures():
    demo = make_demo(make_query("q1", "removed", 3), make_query("q2", "live", 2), make_query("q3", "live", 2))
    assert format_status_line(demo) == (
        " 12.4 s · 2.00 M rows/s · batch 100 ms · lag 500 ms · 2 live queries (3 added, 1 removed) · 0 shared operators"
    )


def test_the_summary_shows_the_first_lines_of_the_explanation():
    summary = {
        "queries": {"added": 3, "removed": 1, "live": 2, "failed": 0}, "batch_seconds": {"median": 0.1, "max": 0.4},
        "deployment_seconds": None, "rows": 6_000, "seconds": 3.0, "rows_per_second": 2_000.0, "results": 12, "batches": 9,
        "event_time_lag_seconds": 0.5, "warm_up_seconds": 2.0, "shared_operators": 1,
    }  # fmt: skip
    lines = show(render_summary(summary, "\n".join(f"line {number}" for number in range(17))))
    assert lines[0].startswith("╭─ 3 queries, one pipeline, 0 restarts ─")
    assert any("6,000 in 3 s = 2,000 rows/s; 12 results" in line for line in lines)
    assert any("9, 100 ms each (slowest 400 ms)" in line for line in lines)
    assert any("2 live, 1 removed, 0 failed; 1 shared operators" in line for line in lines)
    assert lines[-2:] == ["line 13", "… 3 more lines"]


def test_streams_of_a_recovered_session_keep_their_start_time(tmp_path: Path):
    starts = []
    for _ in range(2):
        with Session(tmp_path, backend="local") as session:
            declare_demo_streams(session, 100.0)
            session.add("SELECT COUNT(*) AS n FROM TUMBLE(ads, '1 second')", name=f"query {len(starts)}", sink="noop")
            session.advance()
            starts.append([session.streams()[name]["source"]["start_time"] for name in ("purchases", "ads")])
    assert starts[0] == starts[1]
