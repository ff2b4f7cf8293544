"""Data throughput of each query, measured where its results arrive: how fast rows of its streams went into results.

A result of a window shows that the query has consumed the rows of its streams that are older than the end of the window. Only
results with a later window end than all before say something new:

    arrival      t0 ────────── t1 ────────── t2 ── … ── end
    consumed     c0            c1            c2                  rows of the query's streams before the window end
    rate         (c2 − c0) / (t2 − t0); if results fail to come for more than two slides before the end, their time counts

The rates of queries differ if the system delays some of them, and if they read streams of different rates. A query with fewer
than two such results has no rate: it is silent, because it is too slow or because few rows satisfy its predicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from headrace.bench.measure.collector import Emissions
from headrace.bench.measure.statistics import Integers

_LATE_SLIDES = 2  # slides without a result after which a query counts as waiting


class RowCounts(Protocol):
    """Row counts by event time, from the log of the driver."""

    def rows_before(self, stream: str, time_us: Integers, /) -> Integers:
        """Return the number of rows of a stream with an event time before each of these times."""


class ConsumingQuery(Protocol):
    """A query: its streams, and the time between its windows."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams it reads."""

    @property
    def slide_us(self) -> int:
        """The time from one of its windows to the next."""


@dataclass(frozen=True, slots=True)
class QueryLife:
    """The part of the measurement in which a query was live, in microseconds since 1970."""

    begin_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        """The length; zero for a query that was not live in the measurement."""
        return max(0, self.end_us - self.begin_us)


@dataclass(frozen=True, slots=True)
class DataThroughput:
    """Rows/s by query.

    `overall` is the mean over the measurement of the sum over the queries live at a time; silent queries count as zero.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    overall: float = 0.0
    silent: tuple[str, ...] = ()

    @property
    def slowest_query(self) -> str | None:
        """The query with the lowest rate; None if all are silent."""
        return min(self.rates, key=lambda name: self.rates[name], default=None)

    @property
    def slowest(self) -> float | None:
        """The lowest rate of a query; None if all are silent."""
        return min(self.rates.values(), default=None)


def measure_data_throughput(
    emissions: Emissions,
    queries: Mapping[str, ConsumingQuery],
    lives: Mapping[str, QueryLife],
    counts: RowCounts,
    length_us: int,
) -> DataThroughput | None:
    """Return the rates of the queries with a life, over a measurement of this length; None if no query was live."""
    rates, silent, consumed = {}, [], 0.0
    for name, life in lives.items():
        if not life.length_us:
            continue
        rate = _measure_query(emissions.filter_queries({name}), queries[name], life, counts)
        if rate is None:
            silent.append(name)
        else:
            rates[name] = rate
            consumed += rate * life.length_us
    return DataThroughput(rates, consumed / length_us, tuple(silent)) if rates or silent else None


def _measure_query(emissions: Emissions, query: ConsumingQuery, life: QueryLife, counts: RowCounts) -> float | None:
    inside = (emissions.arrival_us >= life.begin_us) & (emissions.arrival_us <= life.end_us)
    order = np.argsort(emissions.arrival_us[inside], kind="stable")
    arrivals, reached = emissions.arrival_us[inside][order], np.maximum.accumulate(emissions.window_end_us[inside][order])
    news = np.flatnonzero(np.diff(reached, prepend=reached[:1] - 1) > 0)
    if len(news) < 2:
        return None
    first, last = news[0], news[-1]
    bounds = reached[[first, last]]
    rows = sum(int(np.diff(counts.rows_before(stream, bounds))[0]) for stream in query.streams)
    is_waiting = life.end_us - arrivals[last] > _LATE_SLIDES * query.slide_us
    stop = life.end_us - query.slide_us if is_waiting else arrivals[last]
    return float(rows * 1e6 / (stop - arrivals[first])) if stop > arrivals[first] else None
