"""The automatic number of partitions: a pure decision over figures of batches, and sessions that follow it.

batches   … 4 4 4 4 4 | 8 8 8 8 8 …       a change needs several batches with the same reason, and a pause after the last change
              └ reason in each ┘ └ repartitions the state: does not count
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SessionError
from headrace.model.partition_map import PartitionMap
from headrace.runtime.partition_scaling import (
    PartitionChange,
    PartitionLoad,
    PartitionScaler,
    ScalingPolicy,
    choose_partitions,
)
from headrace.storage.fault_points import install_fault_hook
from support.compare import assert_same_rows
from support.examples import scale_examples

POLICY = ScalingPolicy()
QUIET = (0.06, 0.06)  # too long to merge partitions, too short to split them


def make_loads(*seconds: tuple[float, ...], partitions: int | None = None, parallelism: int = 2, at: float = 0.0) -> list:
    return [
        PartitionLoad(
            at + number,
            PartitionMap(partitions or len(times)),
            parallelism,
            times,
            repartitioned=False,
            split_hashes=find_middles(PartitionMap(partitions or len(times))),
        )
        for number, times in enumerate(seconds)
    ]


def find_middles(partitions: PartitionMap) -> tuple[int, ...]:
    """The middles of all ranges, as reduce tasks with even load find them."""
    ranges = sorted(partitions.list_ranges(), key=lambda item: item.partition)
    return tuple((item.start + item.end) // 2 for item in ranges)


def choose(loads: list[PartitionLoad], now: float = 1e6, *, grown: bool = False) -> PartitionChange | None:
    return choose_partitions(loads, loads[-1].partitions, now, POLICY, grown=grown)


def test_nothing_changes_while_parallelism_and_load_are_fine() -> None:
    assert choose(make_loads(*[QUIET] * 20)) is None
    assert choose_partitions((), PartitionMap(2), 0.0, POLICY, grown=False) is None


@pytest.mark.parametrize("parallelism", [1, 3, 8])
def test_the_number_follows_the_parallelism_once_it_is_steady(parallelism: int) -> None:
    loads = [*make_loads(*[QUIET] * 9), *make_loads(*[QUIET] * 4, parallelism=parallelism)]
    assert choose(loads) is None
    change = choose([*loads, *make_loads(QUIET, parallelism=parallelism)])
    assert change == PartitionChange(PartitionMap(parallelism), f"parallelism is {parallelism}")


def test_a_parallelism_that_changes_from_batch_to_batch_is_not_followed() -> None:
    assert choose([load for number in range(20) for load in make_loads(QUIET, parallelism=2 + number % 2)]) is None


def test_batches_without_a_job_show_the_parallelism_but_no_load() -> None:
    assert choose(make_loads(*[()] * 5, partitions=2, parallelism=4)) == PartitionChange(PartitionMap(4), "parallelism is 4")
    assert choose([*make_loads(*[(5.0, 5.0)] * 4), *make_loads(*[()] * 9, partitions=2)]) is None


def test_long_reduce_tasks_split_their_ranges() -> None:
    slow, halves = (0.9, 1.5), PartitionMap(2)
    assert choose(make_loads(*[slow] * 4)) is None
    change = choose(make_loads(*[slow] * 5))
    assert change == PartitionChange(halves.split({1: 3 << 29}), "reduce tasks take 1.5 s, more than 1 s; split 1", grown=True)
    assert choose(make_loads(*[slow] * 2, QUIET, *[slow] * 4)) is None, "one batch below the target starts anew"
    everything = choose(make_loads(*[(1.5, 1.2)] * 5))
    assert everything == PartitionChange(
        halves.split({0: 1 << 29, 1: 3 << 29}), "reduce tasks take 1.5 s, more than 1 s; split 0, 1", grown=True
    )
    assert everything.partitions.list_shares() == (0.25, 0.25, 0.25, 0.25)


def test_a_skewed_partition_is_split() -> None:
    skewed = (0.8, 0.05, 0.05, 0.1)
    change = choose(make_loads(*[skewed] * 5, parallelism=4))
    split = PartitionMap(4).split({0: 1 << 28})
    assert change == PartitionChange(split, "one partition takes 3.2 times as long as the mean; split 0", grown=True)
    assert split.list_shares() == (0.125, 0.25, 0.25, 0.25, 0.125)
    assert choose(make_loads(*[(0.1, 0.01, 0.01, 0.01)] * 5, parallelism=4)) is None, "too short to matter"


def test_a_range_whose_load_has_one_hash_is_not_split() -> None:
    loads = [replace(load, split_hashes=(None, 1 << 30, None, None)) for load in make_loads(*[(0.8, 0.05, 0.05, 0.1)] * 5)]
    assert choose([replace(load, parallelism=4) for load in loads]) is None


def test_the_number_is_at_most_four_times_the_parallelism() -> None:
    slow = choose(make_loads(*[(2.0,) * 6] * 5, parallelism=2), grown=True)
    assert slow is not None
    assert (slow.partitions.count, slow.reason) == (8, "reduce tasks take 2.0 s, more than 1 s; split 0, 1")
    assert choose(make_loads(*[(2.0,) * 8] * 5, parallelism=2), grown=True) is None
    few = make_loads(*[(0.06,) * 8] * 5, parallelism=1)
    assert choose(few, grown=True) == PartitionChange(PartitionMap(4), "parallelism is 1", grown=True), "cores have gone"


def test_partitions_are_merged_when_the_load_has_gone() -> None:
    change = choose(make_loads(*[(0.01,) * 8] * 5, parallelism=2), grown=True)
    assert change is not None
    assert (change.partitions.count, change.reason, change.grown) == (4, "reduce tasks take only 10 ms", True)
    assert change.partitions.list_shares() == (0.25,) * 4
    change = choose(make_loads(*[(0.01,) * 4] * 5, parallelism=2), grown=True)
    assert change == PartitionChange(PartitionMap(2), "reduce tasks take only 10 ms")
    assert choose(make_loads(*[(0.01,) * 2] * 5, parallelism=2)) is None, "never fewer than the parallelism"


def test_idle_neighbours_are_merged_and_busy_ones_are_not() -> None:
    change = choose(make_loads(*[(0.04, 0.03, 0.001, 0.002, 0.03)] * 5, parallelism=4), grown=True)
    assert change is not None
    assert change.partitions == PartitionMap(5).merge([(2, 3)])
    assert change.partitions.list_shares() == pytest.approx((0.2, 0.2, 0.4, 0.2))


def test_two_changes_are_apart() -> None:
    loads = [*make_loads(*[QUIET] * 5), PartitionLoad(5.0, PartitionMap(4), 2, (9.0,) * 4, repartitioned=True)]
    loads += make_loads(*[(2.0,) * 4] * 5, at=6.0)
    assert choose(loads, now=34.9, grown=True) is None
    assert choose(loads, now=35.0, grown=True) is not None


def test_the_batch_that_repartitions_does_not_count() -> None:
    loads = [*make_loads(*[QUIET] * 5), PartitionLoad(5.0, PartitionMap(4), 2, (9.0,) * 4, repartitioned=True)]
    assert choose([*loads, *make_loads(*[(2.0,) * 4] * 4, at=6.0)], grown=True) is None


def test_an_increase_that_did_not_help_is_not_repeated() -> None:
    hot = [*make_loads(*[(3.0, 0.1)] * 5), PartitionLoad(5.0, PartitionMap(4), 2, (9.0,) * 4, repartitioned=True)]
    assert choose([*hot, *make_loads(*[(3.0, 0.1, 0.1, 0.1)] * 5, at=6.0)], grown=True) is None
    assert choose([*hot, *make_loads(*[(1.4, 0.9, 0.4, 0.4)] * 5, at=6.0)], grown=True) is not None


def test_the_number_does_not_oscillate() -> None:
    """Simulate a steady load that partitions divide evenly: whatever it is, the number only grows."""
    random = Random(7)
    for _ in range(scale_examples(100)):
        scaler, partitions, work, counts = PartitionScaler("auto"), PartitionMap(4), random.uniform(0.01, 60.0), [4]
        for batch in range(400):
            change = scaler.plan(partitions, 4, float(batch))
            counts.append(change.partitions.count)
            repartitioned, partitions = change.partitions != partitions, change.partitions
            times = tuple(work * share * random.uniform(0.8, 1.2) for share in partitions.list_shares())
            scaler.record(PartitionLoad(float(batch), partitions, 4, times, repartitioned, find_middles(partitions)))
            assert 4 <= partitions.count <= 16
        assert counts == sorted(counts), "nothing that was split is merged again"


def test_a_fixed_number_ends_the_automatic_one() -> None:
    scaler = PartitionScaler("auto")
    for load in make_loads(*[QUIET] * 9, parallelism=5):
        scaler.record(load)
    assert scaler.plan(PartitionMap(2), 5, 100.0).partitions == PartitionMap(5)
    scaler.setting = 3
    assert scaler.plan(PartitionMap(2), 5, 100.0) == PartitionChange(PartitionMap(3), "as requested")
    assert scaler.plan(PartitionMap(3), 5, 100.0) == PartitionChange(PartitionMap(3))


@pytest.mark.parametrize("wrong", [0, True, 2.5, "many", "AUTO"])
def test_an_invalid_setting_is_refused_before_anything_is_written(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(SessionError, match="invalid partition count"):
        hr.Session(tmp_path / "c", backend="local", partitions=wrong)
    with hr.Session(tmp_path / "c", backend="local") as session:
        assert session.partitioning.partitions == 2


DAY = datetime(2026, 1, 1, tzinfo=UTC)
SUMS = "SELECT window_start, k, SUM(x) AS t FROM HOP(a, '20 seconds', '5 seconds') GROUP BY k"
EAGER = ScalingPolicy(steady_batches=1, cooldown_seconds=0.0)


def append_rows(source: hr.MemorySource, number: int) -> None:
    times = [DAY + timedelta(seconds=5 * number, milliseconds=row) for row in range(30)]
    source.append([{"k": row % 9, "x": row, "time": time} for row, time in enumerate(times)])


def run_session(folder: Path, cores: list[int], **options: Any) -> tuple[list[dict[str, Any]], list[int], list[str]]:
    counts, changes = [], []
    with hr.Session(folder, backend="local", **options) as session:
        session._coordinator.scaler.policy = EAGER
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        query = session.add(SUMS, name="sums")
        for number, parallelism in enumerate(cores):
            session._backend.parallelism = parallelism
            append_rows(source, number)
            report = session.advance()
            counts.append(session.partitioning.partitions)
            changes += [text for kind, text in report.changes if kind == "replan"]
        session.drain()
        return query.results().to_pylist(), counts, changes


def test_a_session_follows_its_backend_and_its_results_stay_the_same(tmp_path: Path) -> None:
    cores = [2, 2, 5, 5, 1, 1, 1, 4, 4]
    results, counts, changes = run_session(tmp_path / "auto", cores, partitions="auto")
    assert counts == [2, 2, 2, 5, 5, 1, 1, 1, 4]
    assert changes == [
        "partitions 2 → 5: parallelism is 5",
        "partitions 5 → 1: parallelism is 1",
        "partitions 1 → 4: parallelism is 4",
    ]
    fixed, same, none = run_session(tmp_path / "fixed", cores, partitions=2)
    assert (set(same), none) == ({2}, [])
    assert results
    assert_same_rows(results, fixed)


def test_an_interrupted_batch_uses_the_number_of_its_log_entry(tmp_path: Path) -> None:
    class InterruptedBatchError(Exception):
        pass

    def interrupt(step: str) -> None:
        if step == "planned":
            raise InterruptedBatchError

    with hr.Session(tmp_path / "c", backend="local", partitions="auto") as session:
        session._coordinator.scaler.policy, session._backend.parallelism = EAGER, 3
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        session.add(SUMS, name="sums")
        append_rows(source, 0)
        session.advance()
        append_rows(source, 1)
        install_fault_hook(tmp_path / "c", interrupt)
        with pytest.raises(InterruptedBatchError):
            session.advance()
        install_fault_hook(tmp_path / "c", None)
    with hr.Session(tmp_path / "c", backend="local", partitions="auto") as session:
        assert session.partitioning.partitions == 2
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        assert ("replan", "partitions 2 → 3: parallelism is 3") in session._run_one_batch().changes
        assert session.partitioning.partitions == 3
