"""Joins in HOP windows that keep the pairs of slices: counted work, what is kept and forgotten, and equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine import worker_cache
from headrace.engine.joins.kept_pairs import KeptPairs, PairCounts
from headrace.engine.joins.pair_keeper import RoundWork
from headrace.model.partition_map import PartitionMap

HOP = "HOP({0}, '8 seconds', '1 second') {0}"
TUMBLE = "TUMBLE({0}, '1 second') {0}"
ROWS = 40  # of each stream in each second
KEYS = 10


class JoinRun:
    """A session with streams a, b and c, and rows of each second in a micro-batch of its own."""

    def __init__(self, *texts: str, parts: int = 1, keys: int = KEYS, directory: Path | None = None, **options: Any) -> None:
        """Add a query for each text; each second comes in `parts` micro-batches."""
        self.parts, self.keys, self.second = parts, keys, 0
        self.session = hr.Session(directory, backend="local", **{"partitions": 2, **options})
        self.sources = {name: hr.MemorySource("k INT, s STRING, n INT, time TIMESTAMP") for name in "abc"}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time")
        self.queries = [self.session.add(text) for text in texts]

    def advance(self, seconds: int, late_by: int = 0) -> None:
        """Run the micro-batches of some seconds; one row in four is late by some seconds."""
        for _ in range(seconds):
            for part in range(self.parts):
                for number, source in enumerate(self.sources.values()):
                    source.append(list(self._make_rows(part, number, late_by)))
                self.session.advance()
            self.second += 1

    def _make_rows(self, part: int, number: int, late_by: int) -> Iterator[dict[str, Any]]:
        for row in range(part, ROWS, self.parts):
            second = self.second - (late_by if row % 4 == 0 and self.second >= late_by else 0)
            key = (row * (number + 3) + self.second) % self.keys
            time = f"2024-01-01T00:{second // 60:02d}:{second % 60:02d}.{row * 20:03d}Z"
            yield {"k": key, "s": f"key {key}", "n": self.second * 1000 + row, "time": time}

    @property
    def counts(self) -> PairCounts:
        """The pairs found, kept and looked up since the session was opened."""
        total = PairCounts()
        for counts in self.session._observer.totals.read().window_pairs.values():
            total.add(counts)
        return total

    def list_kept(self) -> list[KeptPairs]:
        """Return what the worker, this process, keeps for the session."""
        cache = worker_cache.get_worker_cache(self.session._checkpoint.location, self.session._checkpoint.identity)
        return list(cache.kept_pairs._by_step.values())

    def close(self) -> list[Counter[tuple[Any, ...]]]:
        """Close all windows; return the rows of each query with their number."""
        self.session.drain()
        assert [query.error for query in self.queries] == [None] * len(self.queries)
        rows = [Counter(tuple(row.values()) for row in query.results().to_pylist()) for query in self.queries]
        self.session.close()
        return rows


def join(window: str, condition: str = "a.k = b.k", kind: str = "JOIN", columns: str = "a.n AS p, b.n AS q") -> str:
    """Return the text of a join of a and b."""
    start = "" if "SELECT" in columns else "window_end, "
    return f"SELECT {start}{columns} FROM {window.format('a')} {kind} {window.format('b')} ON {condition}"


def count_windows(results: Counter[tuple[Any, ...]]) -> Counter[int]:
    """Return how many pairs of rows are in how many windows."""
    return Counter(Counter((row[1], row[2]) for row in results.elements()).values())


@pytest.mark.parametrize("condition", ["a.k = b.k", "a.s = b.s", "a.k = b.k AND a.s = b.s"])
def test_a_pair_of_overlapping_windows_is_found_once(condition: str) -> None:
    counts, results = {}, {}
    for mode in ("found", "kept"):
        run = JoinRun(join(HOP, condition), join(HOP, condition) + " WHERE a.n % 2 = 0", join_slices=mode)
        run.advance(20)
        counts[mode] = run.counts
        results[mode] = run.close()
    assert results["kept"] == results["found"]
    windows = count_windows(results["kept"][0])
    assert max(windows) == 8
    pairs_of_windows, second_pairs = sum(results["kept"][0].values()), windows.total()
    # 12 of 20 windows are complete, and the last ones close at the end, in a batch of its own
    assert counts["found"].kept == 0
    assert 3 * counts["kept"].found < counts["found"].found < pairs_of_windows
    assert counts["kept"].found <= second_pairs
    assert counts["kept"].found + counts["kept"].kept == counts["found"].found
    assert counts["kept"].look_ups < counts["found"].look_ups


def test_tumbling_windows_keep_no_pairs() -> None:
    run = JoinRun(join(TUMBLE), join_slices="auto")
    run.advance(5)
    assert run.list_kept() == []
    assert run.counts.found > 0
    assert run.counts.kept == 0
    run.close()


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
@pytest.mark.parametrize("parts", [1, 20])  # with 20 micro-batches a second, the segments of a slice are compacted
def test_results_do_not_depend_on_what_is_kept(kind: str, parts: int) -> None:
    columns = "a.n AS p" if kind in ("LEFT SEMI JOIN", "LEFT ANTI JOIN") else "a.n AS p, b.n AS q"
    results = []
    for mode in ("found", "kept"):
        run = JoinRun(
            join(HOP, "a.k = b.k AND a.n % 5 < b.n % 7", kind, columns),
            join("HOP({0}, '4 seconds', '2 seconds') {0}", "a.k = b.k", kind, columns),
            parts=parts,
            keys=60,
            join_slices=mode,
        )
        run.advance(6, late_by=2)
        results.append(run.close())
    assert results[0] == results[1]
    assert all(results[0])


def test_a_pair_is_found_once_although_the_segments_of_a_slice_are_compacted() -> None:
    run = JoinRun(join(HOP), parts=20, join_slices="kept")
    run.advance(10)
    counts = run.counts
    pairs = count_windows(run.close()[0]).total()
    assert 0 < counts.found <= pairs
    assert counts.kept > 2 * counts.found


def test_slices_that_left_all_windows_are_forgotten() -> None:
    run = JoinRun(join(HOP), join_slices="kept")
    run.advance(10)
    sizes = [sum(kept.bytes for kept in run.list_kept())]
    pairs = [sum(len(ids) for kept in run.list_kept() for ids, _ in kept.pairs.values())]
    run.advance(20)
    sizes.append(sum(kept.bytes for kept in run.list_kept()))
    pairs.append(sum(len(ids) for kept in run.list_kept() for ids, _ in kept.pairs.values()))
    assert 0 < pairs[1] < 1.2 * pairs[0]
    assert sizes[1] < 1.2 * sizes[0]
    run.close()


def test_many_slices_are_merged_into_few_blocks() -> None:
    text = join("HOP({0}, '40 seconds', '1 second') {0}")
    results = []
    for mode in ("found", "kept"):
        run = JoinRun(text, keys=200, join_slices=mode)
        run.advance(60)
        assert all(len(side) <= 12 for kept in run.list_kept() for side in kept.sides)
        results.append(run.close())
    assert results[0] == results[1]


def test_pairs_of_a_hot_key_are_not_kept() -> None:
    limit, results = 20_000, []
    for mode in ("found", "kept"):
        run = JoinRun(join(HOP), keys=1, join_slices=mode, join_slices_bytes=limit)
        for _ in range(12):
            run.advance(1)
            assert sum(kept.bytes for kept in run.list_kept()) <= limit
        results.append(run.close())
    assert results[0] == results[1]
    assert run.counts.found > 0


def test_rounds_without_room_become_fewer() -> None:
    kept, rounds = KeptPairs(), []
    for _ in range(4):
        kept.clear()
        rounds.append(kept.paused_rounds)
    assert rounds == [1, 3, 7, 15]
    kept.add_blocks([None, None], {})
    kept.clear()
    assert kept.paused_rounds == 1


def test_a_worker_without_pairs_finds_those_of_the_window(monkeypatch) -> None:
    monkeypatch.setattr(worker_cache, "_CACHES", {})
    expected = JoinRun(join(HOP), join_slices="found")
    run = JoinRun(join(HOP), join_slices="kept")
    for session in (expected, run):
        session.advance(12)
    worker_cache._CACHES.clear()
    before = run.counts.found
    run.advance(1)
    assert run.counts.found - before > 5 * before / 12  # those of eight slices
    after = run.counts.found
    run.advance(1)
    assert run.counts.found - after < 3 * before / 12
    expected.advance(2)
    assert run.close() == expected.close()


def test_a_worker_that_missed_batches_adds_what_it_lacks(monkeypatch) -> None:
    monkeypatch.setattr(worker_cache, "_CACHES", {})
    expected = JoinRun(join(HOP), join_slices="found")
    run = JoinRun(join(HOP), join_slices="kept")
    for session in (expected, run):
        session.advance(12)
    elsewhere: dict[tuple[str, str], worker_cache.WorkerCache] = {}
    here = dict(worker_cache._CACHES)
    for caches in (elsewhere, here, elsewhere, elsewhere, here):  # two workers run the partitions by turns
        worker_cache._CACHES.clear()
        worker_cache._CACHES.update(caches)
        run.advance(1)
        caches.update(worker_cache._CACHES)
    expected.advance(5)
    assert run.close() == expected.close()


def test_a_change_of_partitions_and_of_queries_changes_no_result() -> None:
    results = []
    for mode in ("found", "kept"):
        run = JoinRun(join(HOP), join_slices=mode)
        run.advance(9)
        run.session._coordinator.state.partition_map = PartitionMap(3)
        run.queries.append(run.session.add(join("HOP({0}, '5 seconds', '1 second') {0}")))
        run.advance(4)
        run.session._coordinator.state.partition_map = PartitionMap(1)
        run.advance(4)
        results.append(run.close())
    assert results[0] == results[1]


def test_what_is_kept_goes_with_the_last_query() -> None:
    run = JoinRun(join("HOP({0}, '2 seconds', '1 second') {0}"), join_slices="kept")
    run.advance(10)
    assert run.list_kept()
    run.queries[0].remove()
    window = "HOP({0}, '2 seconds', '1 second') {0}"
    run.session.add(f"SELECT a.n AS n FROM {window.format('a')} JOIN {window.format('c')} ON a.k = c.k")
    run.advance(1)
    assert run.list_kept() == []
    run.advance(2)
    assert run.list_kept()
    run.session.close()


def test_joins_of_other_conditions_and_further_steps_share_the_pairs_of_the_first_step() -> None:
    three = (
        f"SELECT a.n AS p, b.n AS q, c.n AS r FROM {HOP.format('a')} JOIN {HOP.format('b')} ON a.k = b.k "
        f"JOIN {HOP.format('c')} ON b.k = c.k AND c.n < 3010"
    )
    texts = [
        join(HOP),
        join(HOP, "a.k = b.k AND a.n < b.n"),
        join(HOP, kind="LEFT JOIN"),
        three,
    ]
    results, kept = [], []
    for mode in ("found", "kept"):
        run = JoinRun(*texts, keys=30, join_slices=mode)
        run.advance(10)
        kept.append(run.list_kept())
        results.append(run.close())
    assert results[0] == results[1]
    assert kept[0] == []


@pytest.mark.parametrize(
    ("work", "saves_time"),
    [
        (RoundWork(80_000, 80_000, 0, 20_000, 150_000, 0), True),  # an eighth of the rows is new
        (RoundWork(80_000, 80_000, 0, 160_000, 80_000, 0), False),  # all rows are new
        (RoundWork(10_000, 10_000, 100, 2_000, 10_000, 1_000_000), False),  # a short window and the pairs of a long one
        (RoundWork(80_000, 80_000, 1_000_000, 20_000, 150_000, 1_000_000), False),  # many pairs of few rows
        (RoundWork(800_000, 800_000, 10_000_000, 200_000, 1_500_000, 10_000_000), True),  # many pairs of many rows
    ],
)
def test_pairs_are_kept_where_that_takes_less_time(work: RoundWork, saves_time: bool) -> None:
    assert work.saves_time is saves_time


def test_explain_shows_pairs_found_and_kept() -> None:
    run = JoinRun(join(HOP))
    run.advance(12)
    counts = run.counts
    line = f"{counts.found:,} found by {counts.look_ups:,} look-ups, {counts.kept:,} kept from earlier windows"
    assert line in run.session.explain()
    run.close()


@pytest.mark.parametrize(("option", "value"), [("join_slices", "some"), ("join_slices_bytes", -1)])
def test_invalid_settings_are_refused(option: str, value: object) -> None:
    with pytest.raises(hr.HeadraceError, match=f"invalid setting {option}={value!r}"):
        hr.Session(backend="local", **{option: value})
