"""Resource usage of processes: sampling arithmetic over handmade snapshots, and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from headrace.bench.measure.resources import (
    ProcessReading,
    ResourceMeter,
    ResourceSample,
    ResourceSampler,
    ResourceSnapshot,
    process_tree,
    read_loopback_bytes,
    read_processes,
    summarize_samples,
)
from headrace.errors import HeadraceError

A, B, B_AGAIN = (1, 100.0), (2, 100.0), (2, 200.0)  # B and B_AGAIN: the same pid, different processes


def make_snapshot(now: float, *, served: int = 0, loopback: int = 0, **cpu: float) -> ResourceSnapshot:
    known = {"a": A, "b": B, "again": B_AGAIN}
    return ResourceSnapshot(
        now, {known[name]: ProcessReading(seconds, 1000, 3) for name, seconds in cpu.items()}, served, loopback
    )


def make_sample(second: float, cores: float = 0.0, rss: int = 0, pss: int | None = None) -> ResourceSample:
    return ResourceSample(second, cores, rss, pss, 1, 1, 0.0, 0.0)


def test_cpu_cores_are_cpu_time_per_second():
    meter = ResourceMeter(make_snapshot(10.0, a=5.0, b=1.0))
    usage = meter.take_sample(make_snapshot(12.0, a=6.0, b=3.0))
    assert (usage.second, usage.cpu_cores) == (2.0, 1.5)
    assert (usage.rss_bytes, usage.threads, usage.processes) == (2000, 6, 2)


def test_an_ended_process_does_not_reduce_cpu_time():
    meter = ResourceMeter(make_snapshot(0.0, a=5.0, b=100.0))
    assert meter.take_sample(make_snapshot(1.0, a=5.5)).cpu_cores == 0.5
    assert meter.take_sample(make_snapshot(2.0, a=5.5)).cpu_cores == 0.0


def test_a_new_process_with_a_reused_pid_counts_from_zero():
    meter = ResourceMeter(make_snapshot(0.0, a=5.0, b=100.0))
    assert meter.take_sample(make_snapshot(1.0, a=5.0, again=0.75)).cpu_cores == 0.75
    assert meter.take_sample(make_snapshot(2.0, a=5.0, again=1.0)).cpu_cores == 0.25


def test_a_process_missing_from_a_snapshot_is_not_counted_twice():
    meter = ResourceMeter(make_snapshot(0.0, a=5.0))
    meter.take_sample(make_snapshot(1.0, a=6.0))
    meter.take_sample(make_snapshot(2.0))
    assert meter.take_sample(make_snapshot(3.0, a=6.5)).cpu_cores == 0.5


def test_byte_rates_cover_the_time_since_the_last_snapshot():
    meter = ResourceMeter(make_snapshot(0.0, served=100, loopback=1000))
    usage = meter.take_sample(make_snapshot(2.0, served=300, loopback=5000))
    assert (usage.served_bytes_per_s, usage.loopback_bytes_per_s) == (100.0, 2000.0)


def test_pss_is_reported_only_if_known_for_all_processes():
    meter = ResourceMeter(ResourceSnapshot(0.0, {}))
    partly = ResourceSnapshot(1.0, {A: ProcessReading(0, 10, 1, 7), B: ProcessReading(0, 10, 1)})
    whole = ResourceSnapshot(2.0, {A: ProcessReading(0, 10, 1, 7), B: ProcessReading(0, 10, 1, 4)})
    assert (meter.take_sample(partly).pss_bytes, meter.take_sample(whole).pss_bytes) == (None, 11)


def test_means_are_weighted_by_time():
    summary = summarize_samples([make_sample(1.0, cores=2.0, rss=10), make_sample(4.0, cores=1.0, rss=30, pss=5)])
    assert summary["cpu_cores"] == {"mean": 1.25, "highest": 2.0}
    assert summary["rss_bytes"] == {"mean": 25.0, "highest": 30.0}
    assert summary["pss_bytes"] == {"mean": 5.0, "highest": 5.0}
    assert "second" not in summary


def test_missing_samples_have_no_summary():
    assert summarize_samples([]) == {}
    assert "pss_bytes" not in summarize_samples([make_sample(1.0)])


def test_a_process_tree_is_read_until_it_ends():
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert set(process_tree(parent.pid)) == {parent.pid, child}
        readings = read_processes(process_tree(parent.pid), pss=True)
        assert {pid for pid, _ in readings} == {parent.pid, child}
        assert all(reading.rss_bytes > 0 and reading.threads > 0 for reading in readings.values())
        assert all(reading.pss_bytes is not None and reading.pss_bytes > 0 for reading in readings.values())
        parent.communicate("\n")
    assert process_tree(parent.pid) == ()
    assert read_processes([parent.pid]) == {}


def test_loopback_bytes_never_decrease():
    assert 0 <= read_loopback_bytes() <= read_loopback_bytes()


def test_the_sampler_runs_until_the_block_ends():
    enough_calls = threading.Event()
    calls = []

    def pids() -> list[int]:
        calls.append(len(calls))
        if len(calls) > 4:
            enough_calls.set()
        return [os.getpid()]

    with ResourceSampler(pids, lambda: 1000 * len(calls), interval=0.001, pss_every=2) as sampler:
        assert enough_calls.wait(20)
    samples = sampler.get_samples()
    assert len(samples) == len(calls) - 1
    assert [sample.second for sample in samples] == sorted(sample.second for sample in samples)
    assert all(sample.processes == 1 and sample.served_bytes_per_s > 0 for sample in samples)
    assert [sample.pss_bytes is not None for sample in samples[:4]] == [False, True, False, True]


def test_get_samples_raises_after_a_sampler_failure():
    answers = iter([[os.getpid()]])
    failed = threading.Event()

    def pids() -> list[int]:
        try:
            return next(answers)
        except StopIteration:
            failed.set()
            raise RuntimeError("no such list") from None

    with ResourceSampler(pids, interval=0.001) as sampler:
        assert failed.wait(20)
    with pytest.raises(HeadraceError, match="no such list"):
        sampler.get_samples()
