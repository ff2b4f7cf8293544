"""Measures the capacity of one driver process: the driver on one core, the reader on another.

Rates are tried in ascending order. A rate is sustained if fewer rows than a tenth of a second's worth are unread at its end; the
last sustained rate is the result. Rows are those of `fields`, 32 bytes each. Arrow is read in ranges over one connection, text
over one connection per partition. `python -m headrace.bench.driver.capacity` prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from headrace.bench.driver.client import DriverProcess, DriverStatus
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import StreamSpec
from headrace.connectors.source import RANGE_ROWS
from headrace.connectors.tcp import TcpConnection

CAPACITY_STREAM = StreamSpec("fields", "fields")
ARROW_RATES = tuple(million * 1_000_000 for million in (5, 10, 15, 20, 25, 30, 40, 50, 60))
TEXT_RATES = tuple(million * 500_000 for million in (1, 2, 4, 6, 8, 10, 12, 16))
_QUEUE_CAPACITY_ROWS = 60_000_000
_TOLERATED_BACKLOG_SECONDS = 0.1  # seconds of input


@dataclass(frozen=True, slots=True)
class ServedRate:
    """The outcome for one rate; `cpu` is the share of its core that the driver used."""

    rate: float
    sustained: bool
    backlog: int
    rows_per_second: float
    bytes_per_second: float
    cpu: float


def measure_capacity(seconds: float = 2.0) -> dict[str, Any]:
    """Return for each format the highest sustained rate and all rates tried."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        outcomes = {
            "arrow": _raise_rate(ARROW_RATES, seconds, cores[:1], _read_arrow),
            "text": _raise_rate(TEXT_RATES, seconds, cores[:1], _read_text),
        }
    finally:
        os.sched_setaffinity(0, cores)
    return {
        form: {
            "rows_per_second": max((trial.rate for trial in trials if trial.sustained), default=None),
            "tried": [asdict(trial) for trial in trials],
        }
        for form, trials in outcomes.items()
    }


_ReadFunction = Callable[[DriverProcess, threading.Event], None]


def _raise_rate(rates: Sequence[float], seconds: float, cores: Sequence[int], read: _ReadFunction) -> list[ServedRate]:
    trials: list[ServedRate] = []
    for rate in rates:
        trials.append(_try_rate(rate, seconds, cores, read))
        if not trials[-1].sustained:
            break
    return trials


def _try_rate(rate: float, seconds: float, cores: Sequence[int], read: _ReadFunction) -> ServedRate:
    with DriverProcess([CAPACITY_STREAM], _QUEUE_CAPACITY_ROWS, cores=cores) as driver:
        stop = threading.Event()
        reader = threading.Thread(target=read, args=(driver, stop))
        reader.start()
        time.sleep(1.0)  # the first request builds the caches
        before, cpu_before = driver.status(), _cpu_seconds(driver.pid)
        driver.start(RateScript.constant(rate))
        time.sleep(seconds)
        after, cpu_used = driver.status(), _cpu_seconds(driver.pid) - cpu_before
        stop.set()
        driver.start(None)
        reader.join()
        return _evaluate_rate(rate, before, after, cpu_used)


def _evaluate_rate(rate: float, before: DriverStatus, after: DriverStatus, cpu_used: float) -> ServedRate:
    elapsed = (after.now - before.now) / 1e6
    sustained = not after.overflowed and after.backlog < rate * _TOLERATED_BACKLOG_SECONDS
    bytes_sent = after.served_bytes - before.served_bytes
    return ServedRate(rate, sustained, after.backlog, after.read / elapsed, bytes_sent / elapsed, cpu_used / elapsed)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_arrow(driver: DriverProcess, stop_event: threading.Event) -> None:
    connection, group = TcpConnection(driver.address), "measure"
    positions = [0] * CAPACITY_STREAM.partitions
    while not stop_event.is_set():
        produced = connection.send_request("status", stream=CAPACITY_STREAM.name, group=group)["produced"]
        for partition, (start, stop) in enumerate(zip(positions, produced, strict=True)):
            for first, last in pairwise([*range(start, stop, RANGE_ROWS), stop]):
                connection.read(CAPACITY_STREAM.name, partition, group, first, last)
        if produced == positions:
            time.sleep(0.005)
        positions = produced
        connection.send_request("commit", stream=CAPACITY_STREAM.name, group=group, positions=positions)
    connection.close()


def _read_text(driver: DriverProcess, stop_event: threading.Event) -> None:
    def drain(port: int) -> None:
        buffer = bytearray(1 << 20)
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(0.1)
            while not stop_event.is_set():
                try:
                    sock.recv_into(buffer)
                except TimeoutError:
                    continue

    threads = [threading.Thread(target=drain, args=(port,)) for port in driver.line_ports[CAPACITY_STREAM.name]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    print(json.dumps(measure_capacity(), indent=2))
