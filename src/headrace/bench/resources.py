"""What a system under test uses: CPU, memory, threads and network of its processes, looked at from outside.

Processes come and go: the CPU time of one that ended stays counted as it was last seen, and one that is new counts from
its birth. What a process burns after the last look at it is lost, so short-lived helpers cost a little more than is said.
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

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
Identity = tuple[int, float]  # a process is its number and its birth: numbers are used again


@dataclass(frozen=True, slots=True)
class Reading:
    """One process at one moment. `pss_bytes` shares memory among those that map it; it is dear, so not always read."""

    cpu_s: float
    rss_bytes: int
    threads: int
    pss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes at one moment; rates are over the time since the sample before. Seconds count from the first look."""

    second: float
    cpu_cores: float
    rss_bytes: int
    pss_bytes: int | None
    threads: int
    processes: int
    served_bytes_per_s: float
    loopback_bytes_per_s: float
    state_bytes: int = 0  # in files, where the system keeps its state in any

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen at one moment: processes, and counters of bytes that only grow."""

    now: float
    processes: Mapping[Identity, Reading]
    served_bytes: int = 0
    loopback_bytes: int = 0
    state_bytes: int = 0


class Meter:
    """Turns looks into samples. Pure but for what it remembers: each process as last seen."""

    def __init__(self, first: Look) -> None:
        """CPU time spent before the first look is not counted."""
        self._start, self._last = first.now, first
        self._cpu = {identity: reading.cpu_s for identity, reading in first.processes.items()}

    def sample(self, look: Look) -> Sample:
        """Return what was used since the look before; looks must be in order of time."""
        elapsed = look.now - self._last.now
        used = 0.0
        for identity, reading in look.processes.items():
            used += max(0.0, reading.cpu_s - self._cpu.get(identity, 0.0))
            self._cpu[identity] = max(reading.cpu_s, self._cpu.get(identity, 0.0))
        readings = look.processes.values()
        shared = [reading.pss_bytes for reading in readings if reading.pss_bytes is not None]
        served = look.served_bytes - self._last.served_bytes
        loopback = look.loopback_bytes - self._last.loopback_bytes
        self._last = look
        return Sample(
            look.now - self._start,
            used / elapsed,
            sum(reading.rss_bytes for reading in readings),
            sum(shared) if shared and len(shared) == len(look.processes) else None,
            sum(reading.threads for reading in readings),
            len(look.processes),
            served / elapsed,
            loopback / elapsed,
            look.state_bytes,
        )


class ResourceSampler:
    """Looks every `interval` seconds, in a thread, while the `with` block lasts.

    `pids` says which processes belong to the system now; `served_bytes` is the driver's own count of what it served, `state`
    the folder where the system keeps its state, if it does.
    Proportional memory is read every `pss_every` looks, and never if that is 0.
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
        """Nothing is looked at before the block is entered."""
        self._pids, self._served, self._clock, self._state = pids, served_bytes, clock, state
        self._interval, self._pss_every = interval, pss_every
        self._samples: list[Sample] = []
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resources", daemon=True)

    def __enter__(self) -> Self:
        """Take the first look."""
        self._meter = Meter(self._look(pss=False))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def samples(self) -> tuple[Sample, ...]:
        """Return all samples until now; raises if looking failed."""
        if self._failure is not None:
            raise HeadraceError("the use of resources could not be sampled", detail=repr(self._failure)) from self._failure
        return tuple(self._samples)

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.wait(self._interval):
                number += 1
                pss = self._pss_every > 0 and number % self._pss_every == 0
                self._samples.append(self._meter.sample(self._look(pss=pss)))
        except Exception as error:  # noqa: BLE001  told to whoever asks for samples
            self._failure = error

    def _look(self, *, pss: bool) -> Look:
        state = 0 if self._state is None else folder_bytes(self._state)
        return Look(self._clock(), read_processes(self._pids(), pss=pss), self._served(), loopback_bytes(), state)


def tree(root: int) -> tuple[int, ...]:
    """Return a process and all its descendants; nothing if it is gone."""
    try:
        process = psutil.Process(root)
        return (root, *(child.pid for child in process.children(recursive=True)))
    except _GONE:
        return ()


def read_processes(pids: Iterable[int], *, pss: bool = False) -> dict[Identity, Reading]:
    """Look at processes; those that are gone, or not ours to see, are left out."""
    found = {}
    for pid in pids:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                memory, threads = process.memory_info().rss, process.num_threads()
            shared = process.memory_full_info().pss if pss else None
            found[pid, process.create_time()] = Reading(times.user + times.system, memory, threads, shared)
        except _GONE:
            continue
    return found


def folder_bytes(folder: Path) -> int:
    """Return how much the files of a folder hold; nothing if it is not there, and files that vanish do not count."""
    found = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                found += entry.stat().st_size
    return found


def loopback_bytes() -> int:
    """Return how many bytes went over the loopback interface since the machine started; 0 where it is not to be seen."""
    counters = psutil.net_io_counters(pernic=True)
    return sum(count.bytes_recv for name, count in counters.items() if name == "lo" or name.startswith("lo0"))


def summarise(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Return mean and highest of each figure, means weighted with time; empty without samples."""
    if not samples:
        return {}
    starts = [0.0, *(sample.second for sample in samples[:-1])]
    spans = [sample.second - start for sample, start in zip(samples, starts, strict=True)]
    figures: dict[str, dict[str, float]] = {}
    for name in samples[0].to_json():
        given = [(getattr(sample, name), span) for sample, span in zip(samples, spans, strict=True)]
        seen = [(float(value), span) for value, span in given if value is not None]
        if seen and name != "second":
            whole = sum(span for _, span in seen)
            mean = sum(value * span for value, span in seen) / whole
            figures[name] = {"mean": mean, "highest": max(value for value, _ in seen)}
    return figures
