"""A stream whose source fails stops alone: it is degraded and tried again; other streams and their queries go on, exactly."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lives import SCHEMA, Fault, Killed, make_rows, read_columns

import headrace as hr
from headrace.connectors import Position, Range
from headrace.connectors.tcp import RequestRejectedError
from headrace.errors import SourceError
from headrace.runtime.source_health import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, SourceHealth
from headrace.storage.fault_points import install_fault_hook

BACKENDS = pytest.mark.parametrize("backend", ["local", "reference"])
SUM_BY_WINDOW = "SELECT window_start, SUM(n) AS total FROM TUMBLE({0}, '5 seconds')"
JOIN = "SELECT a.n FROM TUMBLE({0}, '5 seconds') a JOIN TUMBLE({1}, '5 seconds') b ON a.k = b.k"


class FailingSource(hr.MemorySource):
    """A memory source that raises `error` in `plan`, in `pending`, or in the worker that reads its rows (`read`)."""

    def __init__(self, *, step: str = "plan") -> None:
        super().__init__(SCHEMA)
        self.step, self.error = step, None  # type: tuple[str, Exception | None]
        self.calls = 0

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        self.calls += 1
        if self.error is not None and self.step == "plan":
            raise self.error
        ranges, after = super().plan(position, limit_rows)
        if self.error is None or self.step != "read":
            return ranges, after
        return [Range(r.stream, r.reader, f"{r.path}.lost", r.start, r.stop, r.rows, r.options) for r in ranges], after

    def pending(self, position: Position) -> bool:
        if self.error is not None and self.step == "pending":
            self.calls += 1
            raise self.error
        return super().pending(position)


class Clock:
    """A clock that a test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def open_session(directory: Path, sources: dict[str, Any], **options: Any) -> hr.Session:
    session = hr.Session(directory, **{"backend": "local", **options})
    for name, source in sources.items():
        session.create_stream(name, source, time="time")
    return session


def test_the_stream_of_a_source_error_survives_pickling():
    for kind in (SourceError, RequestRejectedError):
        error = pickle.loads(pickle.dumps(kind("m", stream="s", place="p", detail="d", hint="h")))
        assert (type(error), error.stream, str(error)) == (kind, "s", "m\np\ndetail: d\nhint: h")


@BACKENDS
@pytest.mark.parametrize("step", ["plan", "pending", "read"])
def test_other_streams_go_on_in_the_same_batch(tmp_path: Path, backend: str, step: str):
    bad, good = FailingSource(step=step), hr.MemorySource(SCHEMA)
    with open_session(tmp_path, {"bad": bad, "good": good}, backend=backend) as session:
        of_bad, of_good = session.add("SELECT n FROM bad"), session.add("SELECT n FROM good")
        session.advance()
        bad.error = SourceError("out of order") if step != "plan" else RuntimeError("out of order")
        bad.append(make_rows(1, n=1))
        good.append(make_rows(1, n=2))
        session.advance()
        assert read_columns(of_good, "n") == [2]
        assert read_columns(of_bad, "n") == []
        assert {name: stream["status"] for name, stream in session.streams().items()} == {"bad": "degraded", "good": "ok"}
        assert ("no longer exists" if step == "read" else "out of order") in session.streams()["bad"]["error"]
        assert (of_bad.status, of_good.status) == ("live", "live")
        bad.error = None
        session.advance()
        assert read_columns(of_bad, "n") == [1]
        assert session.streams()["bad"]["status"] == "ok"


def test_a_degraded_stream_without_other_work_commits_no_batch(tmp_path: Path):
    bad = FailingSource(step="read")
    with open_session(tmp_path, {"bad": bad}) as session:
        session.add("SELECT n FROM bad")
        session.advance()
        bad.error = SourceError("lost")
        bad.append(make_rows(1))
        for _ in range(3):
            assert session.advance().rows == 0
        assert session.last_batch == 0


def test_the_delay_between_attempts_doubles_and_ends_with_a_success():
    clock = Clock()
    health = SourceHealth(clock)
    delays = []
    for _ in range(12):
        health.record_failure("s", SourceError("no"))
        start = clock.now
        delays.append(health.failures["s"].retry_at - start)
        assert not health.is_due("s")
        assert health.is_due("t")
        clock.now += delays[-1]
        assert health.is_due("s")
    assert delays[:3] == pytest.approx([FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS])
    assert delays[-1] == MAX_DELAY_SECONDS
    health.record_success("s")
    assert health.failures == {}
    health.record_failure("s", SourceError("no"))
    assert health.failures["s"].retry_at - clock.now == pytest.approx(FIRST_DELAY_SECONDS)


@pytest.mark.parametrize("step", ["plan", "pending"])
def test_a_degraded_source_is_not_called_before_it_is_due(tmp_path: Path, step: str):
    bad, clock = FailingSource(step=step), Clock()
    with open_session(tmp_path, {"bad": bad}) as session:
        session._coordinator.sources.health = SourceHealth(clock)
        bad.error, bad.calls = SourceError("no"), 0
        bad.append(make_rows(1))
        for _ in range(5):
            session.advance(retry_degraded=False)
        assert bad.calls == 1
        assert not session.has_work()
        clock.now += FIRST_DELAY_SECONDS
        session.advance(retry_degraded=False)
        assert bad.calls == 2
        session.advance()  # the user asks for a batch now
        assert bad.calls == 3


def test_drain_closes_the_windows_of_readable_streams_and_names_the_others(tmp_path: Path):
    bad, good = FailingSource(), hr.MemorySource(SCHEMA)
    with open_session(tmp_path, {"bad": bad, "good": good}) as session:
        of_bad, of_good = session.add(SUM_BY_WINDOW.format("bad")), session.add(SUM_BY_WINDOW.format("good"))
        joined = session.add(JOIN.format("bad", "good"))
        bad.append(make_rows(1, n=1))
        good.append(make_rows(1, n=2))
        session.advance()
        bad.append(make_rows(2, n=4))
        good.append(make_rows(2, n=8))
        bad.error = SourceError("file 'x' is gone")
        with pytest.raises(SourceError, match="file 'x' is gone") as caught:
            session.drain()
        assert caught.value.stream == "bad"
        assert not session.drained
        assert read_columns(of_good, "total") == [10]
        assert read_columns(of_bad, "total") == read_columns(joined, "n") == []
        bad.error = None
        session.drain()
        assert session.drained
        assert read_columns(of_good, "total") == [10]
        assert read_columns(of_bad, "total") == [5]
        assert read_columns(joined, "n") == [1, 1, 4, 4]


def test_drain_names_all_degraded_streams(tmp_path: Path):
    sources = {"a": FailingSource(), "b": FailingSource()}
    with open_session(tmp_path, sources) as session:
        for source in sources.values():
            source.error = SourceError("gone")
            source.append(make_rows(1))
        with pytest.raises(SourceError, match="streams 'a', 'b' cannot be read"):
            session.drain()


@pytest.mark.parametrize("step", ["logged", "planned", "stage one", "stage two", "commit"])
def test_a_logged_batch_is_planned_again_if_its_input_is_unreadable_after_a_crash(tmp_path: Path, step: str):
    """The results of the interrupted attempt in a file sink do not stay beside those of the batch that replaces it."""
    folder, out, fault = tmp_path / "in", tmp_path / "out", Fault()
    folder.mkdir()
    directory = tmp_path / "checkpoint"

    def open_both() -> hr.Session:
        install_fault_hook(directory, fault)
        files = hr.FileSource(folder, schema=SCHEMA)
        session = open_session(directory, {"good": hr.MemorySource(SCHEMA), "bad": files}, partitions=2)
        session.add("SELECT n FROM bad", name="q", sink=f"jsonl:{out}")
        session.add("SELECT n FROM good", name="g")
        return session

    session = open_both()
    session.advance()
    lines = [f'{{"k": {k}, "n": {k}, "time": "2024-01-01T00:00:0{k}Z"}}' for k in range(8)]
    (folder / "1.json").write_text("\n".join(lines))
    session.get_source("good").append(make_rows(1, n=7))
    fault.at(step)
    with pytest.raises(Killed):
        session.advance()
    session._checkpoint.close()
    (folder / "1.json").rename(tmp_path / "1.json")
    with open_both() as session:
        session.advance()
        assert read_columns(session.query("g"), "n") == [7]
        assert session.streams()["bad"]["rows"] == 0
        assert list(out.glob("part-*")) == []
        (tmp_path / "1.json").rename(folder / "2.json")
        session.drain()
        assert session.streams()["bad"]["rows"] == 8
    assert sorted(line for path in out.glob("part-*") for line in path.read_text().splitlines()) == [
        f'{{"n": {k}}}' for k in range(8)
    ]
    install_fault_hook(directory, None)


# Several streams, one of which fails at random moments: after every batch, queries over the others have the rows of a run without
# failures. After the drain, a query over the failing stream has them too: a degraded stream misses no row.


@pytest.mark.parametrize("seed", range(5))
def test_bystanders_equal_a_run_without_the_failure(tmp_path: Path, seed: int):
    outcomes = [_play(tmp_path / name, seed, fails=fails) for name, fails in (("with", True), ("without", False))]
    assert outcomes[0] == outcomes[1]


def _play(directory: Path, seed: int, *, fails: bool) -> dict[str, list[Any]]:
    rows, faults = Random(seed), Random(seed + 1)
    sources: dict[str, Any] = {"a": hr.MemorySource(SCHEMA), "b": hr.MemorySource(SCHEMA)}
    sources["bad"] = bad = FailingSource(step=faults.choice(["plan", "pending", "read"]))
    emitted: dict[str, list[Any]] = {}
    with open_session(directory, sources) as session:
        queries = _add_queries(session, ["a", "b"])
        for batch in range(8):
            for name, source in sources.items():
                times = sorted(rows.uniform(2 * batch, 2 * batch + 2) for _ in range(rows.randrange(4)))
                source.append([row for t in times for row in make_rows(round(t, 3), k=rows.randrange(3), n=len(name))])
            if fails and faults.random() < 0.6:
                bad.error = faults.choice([SourceError("no"), RuntimeError("no"), KeyError("no"), OSError("no")])
            session.advance()
            if batch == 3:
                queries |= _add_queries(session, ["b", "a"], suffix="_later")
            emitted[f"batch {batch}"] = [read_columns(query, *query.schema.names) for query in queries.values()]
            bad.error = None
        session.drain()
        emitted["drained"] = [read_columns(query, *query.schema.names) for query in queries.values()]
        emitted["of bad"] = [read_columns(session.query("of_bad"), "total"), session.streams()["bad"]["rows"]]
        return emitted


def _add_queries(session: hr.Session, streams: list[str], suffix: str = "") -> dict[str, hr.Query]:
    first, second = streams
    texts = {
        "rows": f"SELECT k, n FROM {first} WHERE k > 0",
        "sums": SUM_BY_WINDOW.format(first),
        "join": JOIN.format(first, second),
        "sliding": f"SELECT x.n FROM SLIDING({first}, '3 seconds') x JOIN SLIDING({second}, '3 seconds') y ON x.k = y.k",
    }
    session.add(SUM_BY_WINDOW.format("bad"), name=f"of_bad{suffix}")
    return {f"{name}{suffix}": session.add(text, name=f"{name}{suffix}") for name, text in texts.items()}
