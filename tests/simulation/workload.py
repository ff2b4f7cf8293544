"""The workload of a seed: streams, a pool of queries, rows with disorder, clients and faults, drawn as a schedule.

Each seed enables some kinds of faults only, so that rare combinations are not drowned by frequent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from headrace.model.stream import Stream
from headrace.model.types import Schema
from simulation import schedule as s

SCHEMA = Schema.parse("id BIGINT, k INT, x INT, y DOUBLE, s STRING, time TIMESTAMP")
TICKS_SCHEMA = Schema.parse("key INT, f1 INT, f2 INT, f3 INT, f4 INT, f5 INT, time TIMESTAMP")
STEPS = 30
BASE = datetime(2024, 1, 1, tzinfo=UTC)
TICKS_PER_SECOND = 0.5
DROPPED_STREAM = "gamma"  # the one that clients drop and declare again
MEMORY_STREAMS = ("alpha", "beta", DROPPED_STREAM)
STREAMS = (*MEMORY_STREAMS, "logs", "ticks")
_DELAYS = ({}, {"alpha": 2, "beta": 1, "gamma": 1, "logs": 2}, {"alpha": 5, "beta": 5, "logs": 5, "ticks": 1})

OPERATORS = (
    "aggregation",
    "join buffer",
    "input of sliding joins",
    "session windows",
    "routing of rows",
    "window evaluation",
    "window join",
    "sliding join",
    "count of late rows",
)

_WINDOWED = (
    "SELECT window_start AS w0, COUNT(*) AS n, SUM(x) AS t FROM TUMBLE({0}, '5 seconds')",
    "SELECT window_start AS w0, k AS g, SUM(x) AS t, AVG(y) AS a FROM TUMBLE({0}, '4 seconds') WHERE x > {1} GROUP BY k",
    "SELECT window_start AS w0, k AS g, MIN(x) AS a, MAX(s) AS b FROM HOP({0}, '8 seconds', '4 seconds') GROUP BY k",
    "SELECT window_start AS w0, s AS g, COUNT(DISTINCT k) AS n FROM HOP({0}, '5 seconds', '2 seconds') WHERE x <> {1} GROUP BY s",
    "SELECT window_start AS w0, window_end AS w1, k AS g, COUNT(*) AS n FROM SESSION({0}, '2 seconds') GROUP BY k",
    "SELECT window_start AS w0, window_end AS w1, SUM(x) AS t FROM SESSION({0}, '3 seconds') WHERE x >= {1}",
    "SELECT window_start AS w0, MEDIAN(x) AS m, COUNT(y) AS n FROM TUMBLE({0}, '10 seconds') HAVING COUNT(*) > {1}",
)
_STATELESS = (
    "SELECT id, x FROM {0} WHERE x > {1}",
    "SELECT id, k, y * 2 AS c FROM {0}",
    "SELECT id, upper(s) AS c FROM {0} WHERE k = {1} OR s = 'a'",
)
_JOINS = (
    (
        "SELECT window_start AS w0, a.id AS i, b.id AS j FROM TUMBLE({0}, '5 seconds') a JOIN TUMBLE({2}, '5 seconds') b"
        " ON a.k = b.k AND a.x > {1}"
    ),
    (
        "SELECT window_start AS w0, a.id AS i, b.id AS j FROM TUMBLE({0}, '4 seconds') a FULL JOIN TUMBLE({2}, '4 seconds') b"
        " ON a.k = b.k"
    ),
    (
        "SELECT window_start AS w0, a.id AS i, b.id AS j, c.id AS l FROM TUMBLE({0}, '3 seconds') a"
        " JOIN TUMBLE({2}, '3 seconds') b ON a.k = b.k JOIN TUMBLE({0}, '3 seconds') c ON b.x = c.x"
    ),
    (
        "SELECT window_start AS w0, a.k AS g, COUNT(*) AS n FROM HOP({0}, '6 seconds', '3 seconds') a"
        " JOIN HOP({2}, '6 seconds', '3 seconds') b ON a.s = b.s GROUP BY a.k"
    ),
    "SELECT a.id AS i, b.id AS j FROM SLIDING({0}, '4 seconds') a JOIN SLIDING({2}, '3 seconds') b ON a.k = b.k",
    "SELECT a.id AS i, b.id AS j FROM SLIDING({0}, '2 seconds') a JOIN SLIDING({2}, '5 seconds') b ON a.x = b.x AND b.k > {1}",
    (
        "SELECT a.id AS i, b.id AS j, c.id AS l FROM SLIDING({0}, '2 seconds') a JOIN SLIDING({2}, '2 seconds') b ON a.k = b.k"
        " JOIN SLIDING({0}, '3 seconds') c ON b.x = c.x"
    ),
)
_FAILING = (
    "SELECT id, x + 2147483640 AS c FROM alpha",  # overflows, and fails, where x > 7
    "SELECT window_start AS w0, k AS g, SUM(x) + 9223372036854775800 AS t FROM TUMBLE(beta, '4 seconds') GROUP BY k",  # for a key
)
_OTHER = (
    "SELECT window_start AS w0, key AS g, SUM(f1) AS t FROM TUMBLE(ticks, '6 seconds') GROUP BY key",
    "SELECT key, f2, time FROM ticks WHERE f1 > 4",
    (
        "SELECT window_start AS w0, a.id AS i, t.f1 AS f FROM TUMBLE(alpha, '6 seconds') a JOIN TUMBLE(ticks, '6 seconds') t"
        " ON a.k = t.key"
    ),
    (
        "SELECT window.start AS w0, k AS g, COUNT(*) AS n FROM (SELECT k, x, time FROM alpha"
        " UNION ALL SELECT k, x, time FROM logs) GROUP BY window(time, '5 seconds'), k"
    ),
    (
        "WITH r AS (SELECT window_start AS w0, window_end AS w1, k AS g, COUNT(*) AS n FROM TUMBLE(alpha, '2 seconds')"
        " GROUP BY k) SELECT window_start AS v0, MAX(n) AS m, COUNT(*) AS c FROM TUMBLE(r, '6 seconds')"
    ),
    (
        "WITH r AS (SELECT window_start AS w0, window_end AS w1, k AS g, SUM(x) AS n FROM TUMBLE(beta, '2 seconds') GROUP BY k)"
        " SELECT window_start AS v0, r.n AS n, b.id AS i FROM TUMBLE(r, '4 seconds') r"
        " JOIN TUMBLE(beta, '4 seconds') b ON r.g = b.k"
    ),
    *_FAILING,
)


def _build_pool() -> tuple[str, ...]:
    pool: list[str] = []
    for templates, pairs in (
        (_WINDOWED, (("alpha", "beta"), ("beta", "alpha"), ("logs", "alpha"))),
        (_JOINS, (("alpha", "beta"), ("beta", "logs"))),
        (_STATELESS, (("alpha", "beta"), ("logs", "beta"))),
        (_WINDOWED[1:5], ((DROPPED_STREAM, "beta"),)),
        (_JOINS[:1] + _JOINS[4:5], (("alpha", DROPPED_STREAM),)),
    ):
        pool += [text.format(left, 1, right) for text in templates for left, right in pairs]
    pool += [text.format("alpha", 2, "beta") for text in _WINDOWED if "{1}" in text]
    return tuple(dict.fromkeys([*pool, *_OTHER, *_OTHER]))


QUERIES = _build_pool()
CALLBACK_QUERIES = tuple(text.format(stream, 1, "") for text in _STATELESS[:2] for stream in ("alpha", "beta"))


def declare_streams(settings: s.Settings) -> tuple[Stream, ...]:
    """Return the streams of a world."""
    return tuple(
        Stream(name, TICKS_SCHEMA if name == "ticks" else SCHEMA, "time", settings.delays.get(name, 0) * 1_000_000)
        for name in STREAMS
    )


class RowMaker:
    """Draws rows with unique ids; each stream has its own event time, from which rows lag behind at random."""

    def __init__(self, random: Random) -> None:
        self._random, self._next_id = random, 0
        self._newest = dict.fromkeys(STREAMS, 0)

    def make_rows(self, stream: str) -> tuple[dict[str, Any], ...]:
        return tuple(self._make_row(stream) for _ in range(self._random.choice((1, 1, 2, 3, 5))))

    def _make_row(self, stream: str) -> dict[str, Any]:
        draw = self._random
        self._newest[stream] += draw.choice((0, 250, 500, 1_000, 1_000, 2_500, 4_000))
        milliseconds = self._newest[stream] - draw.choice((0, 0, 0, 0, 300, 1_000, 3_000, 9_000))
        self._next_id += 1
        return {
            "id": self._next_id,
            "k": draw.choice((0, 0, 1, 1, 2, None)),
            "x": draw.choice((0, 1, 2, 3, 5, 9, -3, None)),
            "y": draw.choice((0.0, 0.5, 1.25, -2.5, None)),
            "s": draw.choice(("a", "a", "b", "", None)),
            "time": None if draw.random() < 0.02 else BASE + timedelta(milliseconds=milliseconds),
        }


_FAULTS = ("crash", "power", "full", "source", "workers", "zombie", "clock", "twice", "damage", "raising", "operator")


class Workload:
    """Draws the steps of the clients and the faults of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        draw = self._random
        self._rows = RowMaker(draw)
        self._faults = {fault for fault in _FAULTS if draw.random() < 0.4}
        self._names = 0
        self._prefers_files = seed % 2 == 0  # of a query that has no other sink; without a draw, so that other seeds stay
        self._queries = draw.sample(QUERIES, 6)
        self._kinds: list[tuple[Callable[[], s.Step], float]] = [
            (self._append, 5.0),
            (self._advance, 4.0),
            (self._write_file, 1.0),
            (self._add, 1.5),
            (self._read, 1.0),
            (lambda: s.Wait(draw.choice((0.5, 2.0, 5.0))), 1.5),
            (lambda: s.RemoveQuery(draw.randrange(8)), 0.5),
            (lambda: s.ReplaceQuery(draw.randrange(8), self._query()), 0.4),
            (lambda: s.Rescale(draw.randint(1, 3)), 0.4),
            (s.Reopen, 0.3),
            (s.DropStream, 0.2),
            (s.DeclareStream, 0.5),
            *self._fault_kinds(),
        ]

    def _fault_kinds(self) -> Iterator[tuple[Callable[[], s.Step], float]]:
        draw, enabled = self._random, self._faults
        if "crash" in enabled:
            yield lambda: s.Crash(draw.choice((draw.randrange(12), draw.randrange(80)))), 1.0
        if "power" in enabled:
            yield (
                lambda: s.Crash(
                    draw.choice((draw.randrange(12), draw.randrange(80))), draw.choice(("all", "some")), draw.getrandbits(30)
                ),
                1.0,
            )
        if self._prefers_files and enabled & {"crash", "power"}:  # around the commit, and the publication after it
            powers = ("nothing",) * ("crash" in enabled) + ("all", "some") * ("power" in enabled)
            yield lambda: s.Crash(draw.randrange(10), draw.choice(powers), draw.getrandbits(30), "commit"), 1.0
        if "full" in enabled:
            yield lambda: s.FillDisk(draw.randrange(30), draw.choice((1, 1, 3, 8)), draw.getrandbits(30)), 0.5
        if "source" in enabled:
            yield lambda: s.FailSource(draw.choice(STREAMS), draw.choice(("plan", "read")), draw.choice((1, 1, 2))), 0.6
        if "zombie" in enabled:
            yield lambda: s.WakeZombie(draw.randrange(8), draw.getrandbits(30)), 0.7
        if "clock" in enabled:
            yield lambda: s.Wait(draw.choice((-3.0, -600.0, 20.0))), 0.5
        if "twice" in enabled:
            yield s.OpenTwice, 0.3
        if "damage" in enabled:
            yield lambda: s.DamageFile(draw.randrange(1000), draw.getrandbits(30)), 0.2
        if "operator" in enabled:
            yield lambda: s.FailOperator(draw.randrange(8), tuple(draw.sample(OPERATORS, draw.randint(1, len(OPERATORS))))), 0.8

    def build_schedule(self, seed: int, steps: int) -> s.Schedule:
        draw = self._random
        settings = s.Settings(
            draw.choice(_DELAYS),
            draw.randint(1, 3),
            draw.randint(1, 3),
            draw.choice((3, 8, 1_000)),
            draw.choice((0, draw.getrandbits(30))),
            drain=draw.random() < 0.5,
        )
        makers, weights = zip(*self._kinds, strict=True)
        first = tuple(self._add() for _ in range(draw.randint(1, 3)))
        drawn = tuple(maker() for maker in draw.choices(makers, weights, k=steps))
        return s.Schedule(seed, settings, (*first, *drawn))

    def _append(self) -> s.Step:
        stream = self._random.choice(("alpha", "alpha", "beta", "beta", DROPPED_STREAM))
        return s.Append(stream, self._rows.make_rows(stream))

    def _write_file(self) -> s.Step:
        return s.WriteFile(self._rows.make_rows("logs"))

    def _advance(self) -> s.Step:
        workers = self._random.getrandbits(30) if "workers" in self._faults else 0
        return s.Advance(workers, retry="source" not in self._faults or self._random.random() < 0.5)

    def _query(self) -> str:
        return self._random.choice(self._queries)

    def _add(self) -> s.Step:
        draw = self._random
        self._names += 1
        sinks = ("memory",) * 8 + ("callback", "callback", "jsonl", "raising" if "raising" in self._faults else "jsonl")
        sink = draw.choice(sinks)
        if sink == "memory" and self._prefers_files and self._names % 2:
            sql = draw.choice((self._query(), *draw.choices(CALLBACK_QUERIES, k=2), draw.choice(_FAILING)))
            return s.AddQuery(f"q{self._names}", sql, "jsonl")
        sql = draw.choice(CALLBACK_QUERIES) if sink in {"callback", "raising"} else self._query()
        return s.AddQuery(f"q{self._names}", sql, sink)

    def _read(self) -> s.Step:
        return s.ReadResults(self._random.randrange(8), self._random.random() < 0.3)


def draw_schedule(seed: int, steps: int = STEPS) -> s.Schedule:
    """Return the schedule of a seed."""
    return Workload(seed).build_schedule(seed, steps)
