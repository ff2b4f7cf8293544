"""How much one driver process can serve: it has one core, the reader another.

A rate counts if, at its end, less than a tenth of a second's rows lie unread; the last rate that does, of ever higher
ones, is the figure. Rows are of `fields`: 32 bytes each. As Arrow they are read in ranges by one connection, as text by one
connection a partition. `python -m headrace.bench.driver_measure` prints it as JSON.
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

from headrace.bench.driver_client import DriverProcess, DriverStatus
from headrace.bench.rate import RateScript
from headrace.bench.stream import StreamSpec
from headrace.connectors.source import RANGE_ROWS
from headrace.connectors.tcp_protocol import Connection

STREAM = StreamSpec("fields", "fields")
ARROW_RATES = tuple(million * 1_000_000 for million in (5, 10, 15, 20, 25, 30, 40, 50, 60))
TEXT_RATES = tuple(million * 500_000 for million in (1, 2, 4, 6, 8, 10, 12, 16))
_CAPACITY = 60_000_000
_TOLERATED = 0.1  # seconds of rows


@dataclass(frozen=True, slots=True)
class Served:
    """One rate, and how it went; `cpu` is the share of its core that the driver used."""

    rate: float
    sustained: bool
    backlog: int
    rows_per_second: float
    bytes_per_second: float
    cpu: float


def measure(seconds: float = 2.0) -> dict[str, Any]:
    """Return for each form the highest rate that was kept up, and all that were tried."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        found = {
            "arrow": _climb(ARROW_RATES, seconds, cores[:1], _read_arrow),
            "text": _climb(TEXT_RATES, seconds, cores[:1], _read_text),
        }
    finally:
        os.sched_setaffinity(0, cores)
    return {
        form: {"rows_per_second": max((t.rate for t in tried if t.sustained), default=None), "tried": [asdict(t) for t in tried]}
        for form, tried in found.items()
    }


_Reader = Callable[[DriverProcess, threading.Event], None]


def _climb(rates: Sequence[float], seconds: float, cores: Sequence[int], read: _Reader) -> list[Served]:
    tried: list[Served] = []
    for rate in rates:
        tried.append(_try(rate, seconds, cores, read))
        if not tried[-1].sustained:
            break
    return tried


def _try(rate: float, seconds: float, cores: Sequence[int], read: _Reader) -> Served:
    with DriverProcess([STREAM], _CAPACITY, cores=cores) as driver:
        done = threading.Event()
        reader = threading.Thread(target=read, args=(driver, done))
        reader.start()
        time.sleep(1.0)  # the first request prepares what it needs
        before, busy = driver.status(), _cpu(driver.pid)
        driver.start(RateScript.constant(rate))
        time.sleep(seconds)
        after, used = driver.status(), _cpu(driver.pid) - busy
        done.set()
        driver.start(None)
        reader.join()
        return _result(rate, before, after, used)


def _result(rate: float, before: DriverStatus, after: DriverStatus, used: float) -> Served:
    elapsed = (after.now - before.now) / 1e6
    sustained = not after.overflowed and after.backlog < rate * _TOLERATED
    sent = after.served_bytes - before.served_bytes
    return Served(rate, sustained, after.backlog, after.read / elapsed, sent / elapsed, used / elapsed)


def _cpu(pid: int) -> float:
    """Return the seconds of processor time of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_arrow(driver: DriverProcess, done: threading.Event) -> None:
    connection, group = Connection(driver.address), "measure"
    positions = [0] * STREAM.partitions
    while not done.is_set():
        produced = connection.ask("status", stream=STREAM.name, group=group)["produced"]
        for partition, (start, stop) in enumerate(zip(positions, produced, strict=True)):
            for a, b in pairwise([*range(start, stop, RANGE_ROWS), stop]):
                connection.read(STREAM.name, partition, group, a, b)
        if produced == positions:
            time.sleep(0.005)
        positions = produced
        connection.ask("commit", stream=STREAM.name, group=group, positions=positions)
    connection.close()


def _read_text(driver: DriverProcess, done: threading.Event) -> None:
    def drain(port: int) -> None:
        room = bytearray(1 << 20)
        with socket.create_connection(("127.0.0.1", port)) as taken:
            taken.settimeout(0.1)
            while not done.is_set():
                try:
                    taken.recv_into(room)
                except TimeoutError:
                    continue

    threads = [threading.Thread(target=drain, args=(port,)) for port in driver.line_ports[STREAM.name]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
