"""The scenarios that every back-end must pass: every kind of query, and all that may happen to a session.

A scenario is a name and a function that runs it on an engine; it raises AssertionError where the results are not those of the
reference. The names of drawn scenarios say what their queries are; streams, changes and crashes are random, the same in each run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import headrace as hr
from conformance.engines import Engine
from headrace.storage.fault_points import install_fault_hook
from headrace.storage.locations import open_store
from properties.harness import Crashed, Fault, RandomLoad, RandomReplanner, Run
from properties.judges import check_run
from support.case_runner import CASES, run_case
from support.compare import assert_same_rows
from support.every_kind_session import BATCHES, LATE_QUERY, QUERIES, EveryKindSession
from support.hostile_session import BYSTANDERS, CULPRITS, HostileRun, end_worker, raise_exit, raise_type_error
from support.join_queries import joins_without_equality, queries_with_joins
from support.nested_queries import queries_with_nesting
from support.queries import queries
from support.sliding_queries import queries_with_sliding_joins
from support.strategies import Scenario, scenarios

ALL_QUERIES = {**QUERIES, "late": LATE_QUERY}
CHANGED_QUERIES = {  # others of the same kind, which replace the first ones
    "hop": "SELECT window_start, k, AVG(n) AS a, MEDIAN(n) AS m FROM HOP(a, '5 seconds', '2 seconds') WHERE n > 5 GROUP BY k",
    "session": "SELECT window_start, window_end, COUNT(*) AS c FROM SESSION(a, '200 milliseconds')",
    "stateless": "SELECT n, halve(n) AS h FROM f WHERE n > 10 UNION ALL SELECT n, halve(n) AS h FROM b WHERE n > 20",
    "window_join": "SELECT a.n AS an, b.n AS bn FROM HOP(a, '4 seconds', '2 seconds') a"
    " FULL JOIN HOP(b, '4 seconds', '2 seconds') b ON a.k = b.k AND a.t = b.t",
    "sliding_join": "SELECT a.n AS an, b.n AS bn, f.n AS fn FROM SLIDING(a, '2 seconds') a, SLIDING(b, '1 second') b,"
    " SLIDING(f, '1 second') f WHERE a.k = b.k AND b.n = f.n",
    "nested": "SELECT window_end, SUM(s) AS m FROM TUMBLE((SELECT k, MAX(n) AS s"
    " FROM TUMBLE(b, '1 second') GROUP BY k), '4 seconds')",
    "function": "SELECT window_start, k, MAX(halve(n)) AS h"
    " FROM TUMBLE((SELECT k, n, time FROM a UNION ALL SELECT k, n, time FROM b), '2 seconds') GROUP BY k",
}
SAMPLE_EXAMPLES = 2
CRASH_POINTS = (0, 1, 2, 3, 5, 7)
"""Durable steps of a micro-batch: before it is logged, in its stages, before and after the commit."""


_RDD, _BY_RDD, _ON_SPARK = frozenset({"rdd"}), frozenset({"rdd", "cluster"}), frozenset({"rdd", "connect", "cluster"})


@dataclass(frozen=True, slots=True)
class ConformanceScenario:
    """A scenario; `sampled_on` names the engines on which it runs with every change, as a part of the sample for them."""

    name: str
    run: Callable[[Engine, str], None]
    sampled_on: frozenset[str] = frozenset()


def list_scenarios(examples: int, *, sample_of: str = "") -> tuple[ConformanceScenario, ...]:
    """Return all scenarios, or the sample for an engine; there are `examples` of each drawn kind."""
    every = (
        *(
            ConformanceScenario(f"case {path.stem}", partial(run_case_on, path), _ON_SPARK & _SAMPLED_CASES.get(path.stem, set()))
            for path in CASES
        ),
        *(ConformanceScenario(f"drawn {name}", partial(draw, name, examples), _RDD) for name in DRAWN),
        *(
            ConformanceScenario(
                f"crash at step {point} and restart", partial(crash_and_restart, point), _ON_SPARK if point == 2 else frozenset()
            )
            for point in CRASH_POINTS
        ),
        ConformanceScenario("replaced and rescaled", replace_and_rescale, _BY_RDD),
        ConformanceScenario("file sinks", write_to_sinks, _BY_RDD),
        ConformanceScenario("failing queries beside bystanders", fail_beside_bystanders),
        ConformanceScenario("ended workers beside bystanders", partial(fail_beside_bystanders, culprits=("type_error",)), _RDD),
    )
    return tuple(scenario for scenario in every if not sample_of or sample_of in scenario.sampled_on)


_SAMPLED_CASES = {"late_rows": {"connect", "cluster"}}


def run_case_on(case: Path, engine: Engine, place: str) -> None:
    """Run a case; that its expectations are those of the reference is what `tests/cases/test_cases.py` checks."""
    with engine.open_session(place) as session:
        run_case(case, session)


@dataclass(frozen=True, slots=True)
class DrawnKind:
    """What a drawn scenario is made of: its queries, and how many there are at most."""

    texts: Callable[[], st.SearchStrategy[str]]
    max_queries: int = 8
    max_batches: int = 5
    follows_load: bool = False


DRAWN: Mapping[str, DrawnKind] = {
    "aggregations, sessions, unions and selections": DrawnKind(queries, max_queries=20),
    "joins and aggregations with automatic partitions": DrawnKind(queries_with_sliding_joins, max_batches=8, follows_load=True),
    "window joins": DrawnKind(queries_with_joins),
    "window joins without an equality": DrawnKind(joins_without_equality, max_queries=4),
    "nested windows": DrawnKind(queries_with_nesting, max_queries=6),
    "sliding joins": DrawnKind(queries_with_sliding_joins, max_queries=6),
}


def draw(name: str, examples: int, engine: Engine, place: str) -> None:
    """Draw scenarios with late rows, changes, crashes, replanning and rescaling; the reference and DuckDB judge each run."""
    kind = DRAWN[name]
    drawn = scenarios(kind.max_queries, max_batches=kind.max_batches, texts=kind.texts())
    numbers = iter(range(10**6))

    @seed(list(DRAWN).index(name))
    @settings(
        max_examples=examples, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )
    @given(drawn, st.integers(0, 1000))
    def run_all(scenario: Scenario, number: int) -> None:
        checkpoint = f"{place}/{next(numbers)}"
        options: dict[str, Any] = {**engine.options, "partitions": "auto" if kind.follows_load else 2}
        replanner, load = (None, RandomLoad(number)) if kind.follows_load else (RandomReplanner(number), None)
        check_run(Run(scenario, checkpoint, options, replanner=replanner, load=load))
        engine.clear(checkpoint)

    run_all()


class ConformanceRun(EveryKindSession):
    """A session with a query of every kind on an engine, which crashes, restarts and changes."""

    def __init__(self, engine: Engine, place: str, sinks: Mapping[str, str] | None = None) -> None:
        self.engine, self.place, self.fault, self.sinks = engine, place, Fault(), sinks or {}
        super().__init__(f"{place}/checkpoint", f"{place}/files")

    def _open_session(self, checkpoint: Path | str) -> None:
        install_fault_hook(checkpoint, self.fault)
        self.session = self.engine.open_session(str(checkpoint), **({} if self.is_reference else {"partitions": 2}))

    @property
    def is_reference(self) -> bool:
        return self.engine.name == "reference"

    def add_queries(self, batch: int) -> None:
        """Add the queries that begin with a batch, those that the session has not got."""
        for name, sql in ({0: QUERIES, 2: {"late": LATE_QUERY}}.get(batch) or {}).items():
            if self.session.find(name) is None:
                self.session.add(sql, name=name, sink=self.sinks.get(name))

    def run_batch(self, batch: int, crash_at: int | None = None) -> None:
        """Run a batch; with `crash_at`, the session ends at that step and another one continues."""
        self.add_queries(batch)
        self.append(batch)
        self.fault.at = crash_at
        try:
            self.session.advance()
        except Crashed:
            self.session._coordinator.backend.close()
            self.session._checkpoint.close()
            self.restart()
            self.add_queries(batch)
            self.session.advance()
        self.fault.at = None

    def restart(self) -> None:
        """Continue with a new session, as a new process does."""
        super().__init__(f"{self.place}/checkpoint", f"{self.place}/files")

    def rescale(self, partitions: int) -> None:
        """Change the number of key partitions; the reference has one."""
        if not self.is_reference:
            self.session.rescale(partitions)

    def finish(self, handles: Mapping[str, hr.Query] | None = None) -> dict[str, list[object]]:
        """Drain, close, and return the rows of every query, sorted; `handles` are of queries that ended."""
        self.session.drain()
        queries = {**{query.name: query for query in self.session.queries()}, **(handles or {})}
        results = {name: sort_rows(query.results().to_pylist()) for name, query in queries.items()}
        self.session.close()
        return results


def sort_rows(rows: Sequence[Mapping[str, Any]]) -> list[object]:
    """Return rows as tuples, in an order that only their values decide."""
    return sorted((tuple(row.values()) for row in rows), key=repr)


def run_on_reference(play: Callable[[Engine, str], dict[str, list[object]]]) -> dict[str, list[object]]:
    """Return the results of the reference, which is run in a folder of its own."""
    with TemporaryDirectory() as folder:
        return play(Engine("reference", {"backend": "reference"}, folder, Path(folder)), folder)


@lru_cache
def expect_every_kind() -> dict[str, list[object]]:
    """The results of the queries of every kind."""

    def play(engine: Engine, place: str) -> dict[str, list[object]]:
        run = ConformanceRun(engine, place)
        for batch in range(BATCHES):
            run.run_batch(batch)
        return run.finish()

    return run_on_reference(play)


def crash_and_restart(point: int, engine: Engine, place: str) -> None:
    """Crash in three batches, at a step of one and the next steps of others; rescale, close and continue.

    batch    0    1 ×    2 × (and a new query)    3    │ 4 ×    5    drain
    partitions 2         3                             │ 1
    """
    run = ConformanceRun(engine, place)
    run.run_batch(0)
    run.run_batch(1, point)
    run.rescale(3)
    run.run_batch(2, point)
    run.run_batch(3)
    run.session.close()
    run.restart()
    run.rescale(1)
    run.run_batch(4, point)
    run.run_batch(5)
    found = run.finish()
    assert run.fault.crashes == 3, f"{run.fault.crashes} crashes: a batch has fewer steps"
    assert_same_results(found, expect_every_kind())


def replace_and_rescale(engine: Engine, place: str) -> None:
    """Replace every query while windows are open; remove and rescale; the new ones answer as if they had been added then.

    batch      0    1    2    3    4 replaced    5 removed: late    drain
    partitions 2    3    1         4
    """

    def play(engine: Engine, place: str) -> dict[str, list[object]]:
        run, ended = ConformanceRun(engine, place), {}
        for batch, partitions in enumerate((2, 3, 1, 1, 4, 4)):
            run.rescale(partitions)
            for name, sql in CHANGED_QUERIES.items() if batch == 4 else ():
                ended[f"{name} before"] = run.session.query(name)
                run.session.replace(name, sql)
            if batch == 5:
                ended["late"] = run.session.query("late")
                run.session.remove("late")
            run.run_batch(batch)
        return run.finish(ended)

    assert_same_results(play(engine, place), run_on_reference(play))


def write_to_sinks(engine: Engine, place: str) -> None:
    """Write the results of every query to files, with a crash in one batch; each row must be in them once."""
    sinks = {name: f"{'jsonl' if number % 2 else 'parquet'}:{place}/sinks/{name}" for number, name in enumerate(ALL_QUERIES)}
    run = ConformanceRun(engine, place, sinks)
    for batch in range(BATCHES):
        run.run_batch(batch, crash_at=5 if batch == 3 else None)
    run.session.drain()
    run.session.close()
    for name, expected in expect_every_kind().items():
        kind, _, location = sinks[name].partition(":")
        rows = [without_times(row) for row in expected] if kind == "jsonl" else expected
        found = sorted(read_sink(kind, location), key=repr)
        assert found == sorted(rows, key=repr), f"sink of {name}: {len(found)} rows, expected {len(rows)}"


def without_times(row: Any) -> tuple[Any, ...]:
    """Return a row as in JSON, but for its times, which are text there."""
    return tuple(value for value in row if not isinstance(value, datetime))


def read_sink(kind: str, location: str) -> list[tuple[Any, ...]]:
    """Return the rows in the files of a sink; those of JSON without times."""
    store = open_store(location)
    contents = [store.get(key) for key in store.list("") if not key.startswith("_")]
    assert store.list("_pending") == []
    if kind == "parquet":
        return [tuple(row.values()) for content in contents for row in pq.read_table(pa.BufferReader(content)).to_pylist()]
    rows = [json.loads(line) for content in contents for line in io.BytesIO(content)]
    return [tuple(value for name, value in row.items() if not name.startswith("window_")) for row in rows]


def fail_beside_bystanders(engine: Engine, place: str, culprits: Collection[str] = tuple(CULPRITS)) -> None:
    """Queries that raise, explode, block or end workers fail; the others emit what the reference emits without them."""
    texts = {name: CULPRITS[name] for name in culprits}
    functions = {"raise_exit": raise_exit, "raise_type_error": raise_type_error}
    if engine.name != "local":  # there, the driver is the worker
        texts["end_worker"], functions["end_worker"] = "SELECT end_worker(k) AS x FROM s", end_worker
    with TemporaryDirectory(dir=engine.folder) as folder:
        places = {name: Path(folder) / name for name in ("alone", "hostile")}
        for path in places.values():
            path.mkdir()
        alone = HostileRun(places["alone"], {"backend": "reference"}, functions, restarts=False)
        alone.play()
        options = {**engine.options, "partitions": 2}
        hostile = HostileRun(places["hostile"], options, functions, texts, checkpoint=f"{place}/checkpoint")
        hostile.play()
    for name in BYSTANDERS:
        assert alone.results[name], name
        assert_same_rows(hostile.results[name], alone.results[name])
    assert {name for name, status in hostile.statuses.items() if status == "failed"} == {*texts, "blocking", "raising"}
    assert all(hostile.statuses[name] == "live" for name in BYSTANDERS)


def assert_same_results(found: Mapping[str, list[object]], expected: Mapping[str, list[object]]) -> None:
    """Assert that every query has the rows of the reference, and that the reference has some."""
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert rows or name.endswith(" before"), f"{name}: the reference has no rows"  # some windows are longer
        assert found[name] == rows, f"{name}: {len(found[name])} rows, expected {len(rows)}"
