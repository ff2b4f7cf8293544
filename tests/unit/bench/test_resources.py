"""What processes use: the arithmetic over looks made by hand, and one look at real processes."""

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

A, B, B_AGAIN = (1, 100.0), (2, 100.0), (2, 200.0)  # the third has the number of the second, and is another


def look(now: float, *, served: int = 0, loopback: int = 0, **cpu: float) -> ResourceSnapshot:
    known = {"a": A, "b": B, "again": B_AGAIN}
    return ResourceSnapshot(
        now, {known[name]: ProcessReading(seconds, 1000, 3) for name, seconds in cpu.items()}, served, loopback
    )


def sample(second: float, cores: float = 0.0, rss: int = 0, pss: int | None = None) -> ResourceSample:
    return ResourceSample(second, cores, rss, pss, 1, 1, 0.0, 0.0)


def test_cores_are_cpu_time_over_time():
    meter = ResourceMeter(look(10.0, a=5.0, b=1.0))
    found = meter.take_sample(look(12.0, a=6.0, b=3.0))
    assert (found.second, found.cpu_cores) == (2.0, 1.5)
    assert (found.rss_bytes, found.threads, found.processes) == (2000, 6, 2)


def test_a_process_that_ended_takes_nothing_back():
    meter = ResourceMeter(look(0.0, a=5.0, b=100.0))
    assert meter.take_sample(look(1.0, a=5.5)).cpu_cores == 0.5
    assert meter.take_sample(look(2.0, a=5.5)).cpu_cores == 0.0


def test_a_new_process_counts_from_its_birth_also_under_an_old_number():
    meter = ResourceMeter(look(0.0, a=5.0, b=100.0))
    assert meter.take_sample(look(1.0, a=5.0, again=0.75)).cpu_cores == 0.75
    assert meter.take_sample(look(2.0, a=5.0, again=1.0)).cpu_cores == 0.25


def test_a_process_overlooked_once_is_not_counted_twice():
    meter = ResourceMeter(look(0.0, a=5.0))
    meter.take_sample(look(1.0, a=6.0))
    meter.take_sample(look(2.0))
    assert meter.take_sample(look(3.0, a=6.5)).cpu_cores == 0.5


def test_bytes_are_rates_since_the_last_look():
    meter = ResourceMeter(look(0.0, served=100, loopback=1000))
    found = meter.take_sample(look(2.0, served=300, loopback=5000))
    assert (found.served_bytes_per_s, found.loopback_bytes_per_s) == (100.0, 2000.0)


def test_shared_memory_is_told_only_if_it_is_known_of_all():
    meter = ResourceMeter(ResourceSnapshot(0.0, {}))
    partly = ResourceSnapshot(1.0, {A: ProcessReading(0, 10, 1, 7), B: ProcessReading(0, 10, 1)})
    whole = ResourceSnapshot(2.0, {A: ProcessReading(0, 10, 1, 7), B: ProcessReading(0, 10, 1, 4)})
    assert (meter.take_sample(partly).pss_bytes, meter.take_sample(whole).pss_bytes) == (None, 11)


def test_means_are_weighted_with_time():
    found = summarize_samples([sample(1.0, cores=2.0, rss=10), sample(4.0, cores=1.0, rss=30, pss=5)])
    assert found["cpu_cores"] == {"mean": 1.25, "highest": 2.0}
    assert found["rss_bytes"] == {"mean": 25.0, "highest": 30.0}
    assert found["pss_bytes"] == {"mean": 5.0, "highest": 5.0}
    assert "second" not in found


def test_no_samples_no_figures():
    assert summarize_samples([]) == {}
    assert "pss_bytes" not in summarize_samples([sample(1.0)])


def test_a_real_tree_is_seen_and_then_gone():
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


def test_loopback_counts_up():
    assert 0 <= read_loopback_bytes() <= read_loopback_bytes()


def test_the_sampler_looks_until_the_block_ends():
    looked = threading.Event()
    asked = []

    def pids() -> list[int]:
        asked.append(len(asked))
        if len(asked) > 4:
            looked.set()
        return [os.getpid()]

    with ResourceSampler(pids, lambda: 1000 * len(asked), interval=0.001, pss_every=2) as sampler:
        assert looked.wait(20)
    samples = sampler.get_samples()
    assert len(samples) == len(asked) - 1
    assert [found.second for found in samples] == sorted(found.second for found in samples)
    assert all(found.processes == 1 and found.served_bytes_per_s > 0 for found in samples)
    assert [found.pss_bytes is not None for found in samples[:4]] == [False, True, False, True]


def test_a_sampler_that_failed_says_so():
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
