# ruff: noqa: S311, S608  generated queries with random constants
"""The queries of the demo, generated from a seed, and the schedule of their additions and removals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SEED = 7
_KEPT_SHARE = 0.7  # of the queries stay until the end


@dataclass(frozen=True, slots=True)
class DemoQuery:
    """A query with its name and a short description."""

    name: str
    about: str
    sql: str


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """The addition (`add`) or removal of a query `at` seconds after the start."""

    at: float
    add: bool
    query: DemoQuery


def generate_queries(number: int, seed: int = SEED) -> Iterator[DemoQuery]:
    """Yield queries: mostly windowed aggregations, some stateless queries, session windows and unions."""
    rng = random.Random(seed)
    for index in range(number):
        maker = _QUERY_MAKERS[index % len(_QUERY_MAKERS)]
        about, sql = maker(rng)
        yield DemoQuery(f"{maker.__name__.lstrip('_')}_{index + 1}", about, sql)


def schedule_events(number: int, length: float, seed: int = SEED) -> list[DemoEvent]:
    """Return the events in order of time: additions until 60 % of the length, removals from 50 % to 90 %."""
    queries = list(generate_queries(number, seed))
    additions = [DemoEvent(0.6 * length * index / max(number, 1), add=True, query=query) for index, query in enumerate(queries)]
    removed = random.Random(seed).sample(queries[: number // 2], min(number // 2, number - round(_KEPT_SHARE * number)))
    removals = [
        DemoEvent(length * (0.5 + 0.4 * (index + 1) / len(removed)), add=False, query=query)
        for index, query in enumerate(removed)
    ]
    return sorted(additions + removals, key=lambda event: event.at)


def _random_window(rng: random.Random, stream: str) -> tuple[str, str]:
    size = rng.choice((1, 2, 3, 4, 5))
    slide = rng.choice((size, size, 1, 2))
    if slide == size:
        return f"every {size} s", f"TUMBLE({stream}, '{size} seconds')"
    return f"{size} s, every {slide} s", f"HOP({stream}, '{size} seconds', '{slide} seconds')"


def _revenue(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "purchases")
    low = rng.randrange(5, 95, 5)
    outputs = "window_start, gem_pack, SUM(price) AS revenue, COUNT(*) AS sold"
    sql = f"SELECT {outputs} FROM {source} WHERE price > {low} GROUP BY gem_pack"
    return f"revenue by pack, price > {low}, {schedule}", sql


def _prices(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "purchases")
    pack = rng.randrange(10)
    sql = f"SELECT window_start, AVG(price) AS mean, MIN(price) AS low, MAX(price) AS high FROM {source} WHERE gem_pack = {pack}"
    return f"prices of pack {pack}, {schedule}", sql


def _ads(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "ads")
    low = rng.randrange(10, 60, 10)
    outputs = "window_start, ad_id, COUNT(*) AS shown, SUM(cost) AS cost"
    sql = f"SELECT {outputs} FROM {source} WHERE cost BETWEEN {low} AND {low + 30} GROUP BY ad_id"
    return f"ads by id, cost {low}–{low + 30}, {schedule}", sql


def _packs(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "purchases")
    low, floor = rng.randrange(10, 90, 10), rng.choice((10, 100))
    sql = (
        f"SELECT window_start, gem_pack, COUNT(*) AS sold, STDDEV(price) AS spread FROM {source} "
        f"WHERE price <= {low} GROUP BY gem_pack HAVING COUNT(*) > {floor}"
    )
    return f"busy packs, price ≤ {low}, {schedule}", sql


def _jackpot(rng: random.Random) -> tuple[str, str]:
    pack = rng.randrange(10)
    return (
        f"each purchase of pack {pack} above 99.97",
        f"SELECT user_id, price, time FROM purchases WHERE price > 99.97 AND gem_pack = {pack}",
    )


def _visits(rng: random.Random) -> tuple[str, str]:
    gap, users = rng.choice((1, 2)), rng.choice((20, 50))
    sql = (
        f"SELECT window_start, window_end, user_id, COUNT(*) AS n FROM SESSION(purchases, '{gap} seconds') "
        f"WHERE price > 99.8 AND user_id < {users} GROUP BY user_id"
    )
    return f"sessions of {users} users, gap {gap} s", sql


def _balance(rng: random.Random) -> tuple[str, str]:
    size = rng.choice((2, 4))
    both = "SELECT price AS amount, gem_pack, time FROM purchases UNION ALL SELECT -cost AS amount, gem_pack, time FROM ads"
    sql = f"SELECT window_start, gem_pack, SUM(amount) AS balance FROM TUMBLE(({both}), '{size} seconds') GROUP BY gem_pack"
    return f"purchases − ads by pack, every {size} s", sql


_QUERY_MAKERS: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    _revenue, _ads, _prices, _revenue, _jackpot, _packs, _ads, _visits, _revenue, _balance,
)  # fmt: skip

KIND_COUNT = len(_QUERY_MAKERS)  # this many queries include one of each kind
