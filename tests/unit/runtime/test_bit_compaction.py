"""Bits of joins are compacted when queries are removed; stored rows keep their queries.

batch       0          1              2
joins     70 added   69 removed     a row that joins a row of batch 0
bits      0 … 69     the last: 0    the stored row has bit 69: translated
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headrace as hr
from headrace.planner.query_bits import FormerBit
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.epochs import _forget_former_bits
from headrace.storage.fault_points import install_fault_hook
from support.bit_compaction import compact_often
from support.compare import assert_same_rows
from support.examples import scale_examples

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SLIDING = "SELECT a.v, b.v AS w FROM SLIDING(a, '20 seconds') a JOIN SLIDING(b, '20 seconds') b ON a.k = b.k AND a.v > {}"
TUMBLE = "SELECT a.v, b.v AS w FROM TUMBLE(a, '20 seconds') a JOIN TUMBLE(b, '20 seconds') b ON a.k = b.k AND a.v > {}"


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


class Killed(BaseException):
    """Raised by a fault; no code of the engine may catch it."""


class JoinSession:
    """A session over streams a, b, c and d; `kill_at` is the durable step at which the next batch is killed and run again."""

    def __init__(self, folder: Path, backend: str = "local") -> None:
        self.folder, self.backend, self.kill_at = folder, backend, ""
        self.open()

    def open(self) -> None:
        install_fault_hook(self.folder, self._reach)
        self.session = hr.Session(self.folder, backend=self.backend, partitions=2)
        self.sources = {name: hr.MemorySource("k INT, v INT, time TIMESTAMP") for name in "abcd"}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time", watermark="3 seconds")

    def _reach(self, step: str) -> None:
        if step == self.kill_at:
            self.kill_at = ""
            raise Killed

    def append(self, stream: str, *rows: tuple[int, int, float]) -> None:
        self.sources[stream].append([{"k": k, "v": v, "time": at(second)} for k, v, second in rows])

    def advance(self) -> None:
        try:
            self.session.advance()
        except Killed:
            self.reopen()
            self.session.advance()

    def reopen(self) -> None:
        self.session._coordinator.backend.close()
        self.session._checkpoint.close()
        self.open()

    def read(self, name: str) -> list[dict[str, Any]]:
        query = self.session.find(name)
        return [] if query is None else query.results().to_pylist()  # removed before its first batch, and unknown after a crash

    def read_bits(self) -> dict[str, int]:
        return {query.name: query.bit for query in self.session._coordinator.live_queries.values()}


@pytest.fixture
def run(tmp_path: Path):
    run = JoinSession(tmp_path / "checkpoint")
    yield run
    run.session.close()


@pytest.mark.parametrize("text", [SLIDING, TUMBLE])
@pytest.mark.parametrize("kill_at", ["", "logged", "commit", "committed"])
def test_the_survivor_of_seventy_joins_needs_one_word_and_finds_its_stored_rows(run: JoinSession, text: str, kill_at: str):
    for number in range(70):
        run.session.add(text.format(number), name=f"q{number}", sink="noop" if number < 69 else None)
    run.append("a", (1, 100, 1), (1, 69, 2), (2, 101, 3))
    run.advance()
    assert run.read_bits()["q69"] == 69
    for number in range(69):
        run.session.remove(f"q{number}")
    run.append("b", (1, 7, 3))
    run.kill_at = kill_at
    run.advance()
    assert run.read_bits() == {"q69": 0}
    run.append("b", (2, 8, 4), (1, 9, 5))
    run.append("a", (1, 102, 5), (1, 5, 5))
    run.advance()
    run.reopen()
    run.append("a", (2, 103, 5))
    run.advance()
    run.session.drain()
    expected = [(100, 7), (100, 9), (101, 8), (102, 7), (102, 9), (103, 8)]
    assert sorted((row["v"], row["w"]) for row in run.read("q69")) == expected


def test_a_compaction_starts_an_epoch_only_on_the_streams_of_moved_window_joins(run: JoinSession):
    run.session.add(TUMBLE.replace("(a,", "(d,").replace("(b,", "(d,").format(0), name="stays")
    for number in range(70):
        run.session.add(TUMBLE.format(number), name=f"q{number}", sink="noop")
    run.session.add(TUMBLE.replace("(a,", "(c,").replace("(b,", "(c,").format(0), name="moves")
    for second, stream in enumerate("abcd"):
        run.append(stream, (1, 1, second))
    run.advance()
    epochs = {name: state.epochs[-1].number for name, state in run.session._coordinator.state.streams.items()}
    for number in range(70):
        run.session.remove(f"q{number}")
    run.advance()
    assert run.read_bits() == {"stays": 0, "moves": 1}
    changed = {n for n, s in run.session._coordinator.state.streams.items() if s.epochs[-1].number != epochs[n]}
    assert changed == {"a", "b", "c"}


def test_a_query_borrows_rows_that_were_stored_under_a_former_bit(run: JoinSession):
    #   batch     0: q69 has bit 69   1: bit 0          2
    #   borrower                       added, past=True    finds the row of batch 0
    for number in range(70):
        run.session.add(SLIDING.format(69 if number == 69 else 1000), name=f"q{number}", sink="noop")
    run.append("a", (1, 100, 1))
    run.append("b", (2, 0, 1))
    run.advance()
    for number in range(69):
        run.session.remove(f"q{number}")
    run.advance()
    run.session.add(SLIDING.format(69), name="borrower", past=True)
    run.append("b", (1, 7, 2))
    run.advance()
    assert [(row["v"], row["w"]) for row in run.read("borrower")] == [(100, 7)]


def test_a_query_borrows_rows_of_a_query_that_is_removed_and_whose_bit_is_beyond_all_words(run: JoinSession):
    for number in range(70):
        run.session.add(SLIDING.format(69 if number == 69 else 1000), name=f"q{number}", sink="noop")
    run.append("a", (1, 100, 1))
    run.append("b", (2, 0, 1))
    run.advance()
    run.session.add(SLIDING.format(69), name="borrower", past=True)
    run.advance()
    for number in range(70):
        run.session.remove(f"q{number}")
    run.advance()
    assert run.read_bits() == {"borrower": 0}
    run.append("b", (1, 7, 2))
    run.advance()
    assert [(row["v"], row["w"]) for row in run.read("borrower")] == [(100, 7)]


def test_only_the_former_bits_that_stored_rows_have_are_kept():
    #   batch                       3 ─── 5: moved ─── 8: moved ───▶
    #   the oldest stored row has   bit 90             bit 70        …
    query = LiveQuery(0, "q", None)
    moved = replace(query, former_bits=(FormerBit(90, 5), FormerBit(70, 8)))
    kept = [[former.bit for former in _forget_former_bits(moved, version).former_bits] for version in (3, 4, 5, 7, 8)]
    assert kept == [[90, 70], [90, 70], [70], [70], []]


def test_former_bits_are_forgotten_when_no_stored_row_has_them(run: JoinSession):
    for number in range(70):
        run.session.add(SLIDING.format(0), name=f"q{number}", sink="noop")
    run.append("a", (1, 100, 1))
    run.append("b", (2, 100, 1))
    run.advance()
    for number in range(69):
        run.session.remove(f"q{number}")
    run.advance()
    (query,) = run.session._coordinator.live_queries.values()
    assert [former.bit for former in query.former_bits] == [69]
    run.append("a", (1, 100, 100))
    run.append("b", (2, 100, 100))
    run.advance()  # evicts the rows of batch 0
    run.session.add("SELECT v FROM c", name="other", sink="noop")
    run.advance()
    assert run.session._coordinator.live_queries[query.id].former_bits == ()


TEXTS = (
    "SELECT a.k, a.v, b.v AS w FROM SLIDING(a, '8 seconds') a JOIN SLIDING(b, '12 seconds') b ON a.k = b.k AND a.v <> {}",
    "SELECT a.v, b.v AS w, c.v AS z FROM SLIDING(a, '8 seconds') a JOIN SLIDING(b, '9 seconds') b ON a.k = b.k \
     JOIN SLIDING(c, '7 seconds') c ON b.k = c.k AND c.v <> {}",
    "SELECT a.v, b.v AS w FROM HOP(a, '8 seconds', '4 seconds') a JOIN HOP(b, '8 seconds', '4 seconds') b \
     ON a.k = b.k AND a.v <> {}",
    "SELECT a.v, c.v AS w FROM TUMBLE(a, '6 seconds') a LEFT JOIN TUMBLE(c, '6 seconds') c ON a.k = c.k AND c.v > {}",
    "SELECT COUNT(*) AS n FROM TUMBLE(a, '4 seconds') WHERE v > {}",
)


def draw_steps(random: Random) -> list[tuple[str, Any]]:
    """Return random steps: joins come and go, borrow stored rows of others, and rows are out of order or late."""
    steps: list[tuple[str, Any]] = []
    live: list[str] = []
    for batch in range(14):
        for _ in range(random.choice((0, 1, 2)) if batch else 5):
            live.append(f"q{len(steps)}")
            steps.append(("add", (live[-1], random.choice(TEXTS).format(random.randrange(3)), random.random() < 0.5)))
        removals = min(random.choice((0, 0, 1, 2)), len(live) - 1)
        steps += [("remove", live.pop(random.randrange(len(live)))) for _ in range(removals)]
        for stream in "abc":
            rows = [
                (random.randrange(3), random.randrange(9), max(0.0, 2 * batch + random.uniform(-5, 2)))
                for _ in range(random.randrange(7))
            ]
            steps.append(("rows", (stream, rows)))
        steps.append(("advance", random.choice(("", "", "logged", "planned", "commit", "committed"))))
    return steps


def play(run: JoinSession, steps: list[tuple[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names = []
    for step, value in steps:
        if step == "add":
            name, text, past = value
            run.session.add(text, name=name, past=past and "SLIDING" in text)
            names.append(name)
        elif step == "remove":
            run.session.remove(value)
        elif step == "rows":
            run.append(value[0], *value[1])
        else:
            run.kill_at = value if run.backend == "local" else ""
            run.advance()
            run.kill_at = ""
    run.session.drain()
    results = {name: run.read(name) for name in names}
    run.session.close()
    return results


@pytest.mark.parametrize("seed", range(scale_examples(60)))
def test_joins_whose_bits_move_often_emit_what_each_emits_alone(tmp_path: Path, seed: int):
    steps = draw_steps(Random(seed))
    expected = play(JoinSession(tmp_path / "reference", "reference"), steps)
    with compact_often():
        results = play(JoinSession(tmp_path / "shared"), steps)
    assert any(expected.values())
    for name, rows in expected.items():
        assert_same_rows(results[name], rows)
