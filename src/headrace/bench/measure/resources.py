"""Resource usage of a system under test: CPU, memory, threads and network of its processes, sampled from outside.

Processes start and end during a run: CPU time of an ended process stays counted as last seen, and a new process counts from its
start. CPU time after the last sample of a process is lost, so that short-lived helpers cost slightly more than reported.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from headrace.errors import HeadraceError

_PROCESS_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
ProcessIdentity = tuple[int, float]  # pid and creation time, because pids are reused


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process at one time. `pss_bytes` divides shared memory among its users; reading it is slow, so it is optional."""

    cpu_s: float
    rss_bytes: int
    threads: int
    pss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """All processes at one time; rates are over the time since the previous sample. Seconds count from the first snapshot."""

    second: float
    cpu_cores: float
    rss_bytes: int
    pss_bytes: int | None
    threads: int
    processes: int
    served_bytes_per_s: float
    loopback_bytes_per_s: float
    state_bytes: int = 0  # of state files, if the system has any

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """A snapshot: the processes, and byte counters that only grow."""

    now: float
    processes: Mapping[ProcessIdentity, ProcessReading]
    served_bytes: int = 0
    loopback_bytes: int = 0
    state_bytes: int = 0


class ResourceMeter:
    """Turns snapshots into samples. Its only state is the last snapshot and the CPU time of every process seen."""

    def __init__(self, snapshot: ResourceSnapshot) -> None:
        """Do not count CPU time before the first snapshot."""
        self._start, self._last = snapshot.now, snapshot
        self._cpu_by_process = {identity: reading.cpu_s for identity, reading in snapshot.processes.items()}

    def take_sample(self, snapshot: ResourceSnapshot) -> ResourceSample:
        """Return the usage since the previous snapshot; snapshots must be in time order."""
        elapsed = snapshot.now - self._last.now
        cpu_used = 0.0
        for identity, reading in snapshot.processes.items():
            cpu_used += max(0.0, reading.cpu_s - self._cpu_by_process.get(identity, 0.0))
            self._cpu_by_process[identity] = max(reading.cpu_s, self._cpu_by_process.get(identity, 0.0))
        readings = snapshot.processes.values()
        pss = [reading.pss_bytes for reading in readings if reading.pss_bytes is not None]
        served = snapshot.served_bytes - self._last.served_bytes
        loopback = snapshot.loopback_bytes - self._last.loopback_bytes
        self._last = snapshot
        return ResourceSample(
            snapshot.now - self._start,
            cpu_used / elapsed,
            sum(reading.rss_bytes for reading in readings),
            sum(pss) if pss and len(pss) == len(snapshot.processes) else None,
            sum(reading.threads for reading in readings),
            len(snapshot.processes),
            served / elapsed,
            loopback / elapsed,
            snapshot.state_bytes,
        )


class ResourceSampler:
    """Takes a sample every `interval` seconds, in a thread, for the duration of the `with` block.

    `pids` returns the current processes of the system, `served_bytes` the driver's count of bytes served; `state` is the folder
    of the system's state files, if any. Proportional memory is read with every `pss_every`-th sample, and never if that is 0.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        served_bytes: Callable[[], int] = lambda: 0,
        *,
        state: Path | None = None,
        interval: float = 0.5,
        pss_every: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the settings; sampling starts when the block is entered."""
        self._pids, self._served_bytes, self._clock, self._state_folder = pids, served_bytes, clock, state
        self._interval, self._pss_every = interval, pss_every
        self._samples: list[ResourceSample] = []
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_loop, name="resources", daemon=True)

    def __enter__(self) -> Self:
        """Take the first snapshot."""
        self._meter = ResourceMeter(self._take_snapshot(pss=False))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def get_samples(self) -> tuple[ResourceSample, ...]:
        """Return all samples so far; raise HeadraceError if sampling failed."""
        if self._failure is not None:
            raise HeadraceError("sampling of resources failed", detail=repr(self._failure)) from self._failure
        return tuple(self._samples)

    def _sample_loop(self) -> None:
        number = 0
        try:
            while not self._stop.wait(self._interval):
                number += 1
                pss = self._pss_every > 0 and number % self._pss_every == 0
                self._samples.append(self._meter.take_sample(self._take_snapshot(pss=pss)))
        except Exception as error:  # noqa: BLE001  raised by `get_samples`
            self._failure = error

    def _take_snapshot(self, *, pss: bool) -> ResourceSnapshot:
        state = 0 if self._state_folder is None else sum_folder_bytes(self._state_folder)
        return ResourceSnapshot(
            self._clock(), read_processes(self._pids(), pss=pss), self._served_bytes(), read_loopback_bytes(), state
        )


def process_tree(root: int) -> tuple[int, ...]:
    """Return a process and all its descendants; empty if it has ended."""
    try:
        process = psutil.Process(root)
        return (root, *(child.pid for child in process.children(recursive=True)))
    except _PROCESS_GONE:
        return ()


def read_processes(pids: Iterable[int], *, pss: bool = False) -> dict[ProcessIdentity, ProcessReading]:
    """Read processes; skip those that have ended or are not accessible."""
    readings = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                memory, threads = process.memory_info().rss, process.num_threads()
            pss_bytes = process.memory_full_info().pss if pss else None
            readings[pid, process.create_time()] = ProcessReading(times.user + times.system, memory, threads, pss_bytes)
        except _PROCESS_GONE:
            continue
    return readings


def sum_folder_bytes(folder: Path) -> int:
    """Return the total size of the files of a folder; 0 if it does not exist, and without files that vanish meanwhile."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total


def read_loopback_bytes() -> int:
    """Return the bytes received on the loopback interface since boot; 0 if the counter is not available."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(count.bytes_recv for name, count in counters.items() if name == "lo" or name.startswith("lo0"))


def summarize_samples(samples: Sequence[ResourceSample]) -> dict[str, dict[str, float]]:
    """Return the time-weighted mean and the maximum of each figure; empty without samples."""
    if not samples:
        return {}
    starts = [0.0, *(sample.second for sample in samples[:-1])]
    spans = [sample.second - start for sample, start in zip(samples, starts, strict=True)]
    figures: dict[str, dict[str, float]] = {}
    for name in samples[0].to_json():
        values = [(getattr(sample, name), span) for sample, span in zip(samples, spans, strict=True)]
        known = [(float(value), span) for value, span in values if value is not None]
        if known and name != "second":
            total_span = sum(span for _, span in known)
            mean = sum(value * span for value, span in known) / total_span
            figures[name] = {"mean": mean, "highest": max(value for value, _ in known)}
    return figures
