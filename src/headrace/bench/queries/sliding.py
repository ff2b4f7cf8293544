"""Equi-joins of several streams in windows that slide with every row, in all dialects.

Rows match when they are equal in the columns of all links and no two of them are further apart than `range_us`: since all
windows are equally long, that says the same as that none is further back than that from the newest. A result is there as
soon as its newest row is; `window_end` is that row's event time, in milliseconds, as finely as Flink's row times go.

    headrace   SLIDING(s, range) in FROM
    spark      joins of two, one in the other: a step passes on one column of event time, for Spark takes no more; what else is
               used of a stream is a structure, with its event time as a number
    flink      joins of two by row times. Flink takes two bounds of row times for each join and no other mention of them, so
               the other pairs are compared by a copy of the event time that is no row time any more
    duckdb     the tables hold the rows of [end - range - step, end), and the parameter is the end: results whose newest row is of
               the last step, so that tables a step apart give every result once

A row that is joined to k others finds them among rows up to a range older or younger, so results do not grow with the rate
alone: `results_per_second` tells how many there will be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from headrace.bench.queries.dialect import SECOND, Quote, interval, plain, quoted, select, span, ticked
from headrace.bench.query import BenchQuery
from headrace.errors import HeadraceError

STEP = SECOND  # how often an engine that only knows tables is asked

Place = tuple[str, str]  # the alias of a stream, and a column of it
Link = tuple[tuple[Place, Place], ...]  # what must be equal: on the left a stream before, on the right the one that is joined


@dataclass(frozen=True, slots=True)
class SlidingJoin:
    """Streams with their aliases, in the order in which they are joined; each but the first has a link to those before."""

    streams: tuple[tuple[str, str], ...]
    links: tuple[Link, ...]
    outputs: tuple[Place, ...]
    range_us: int

    def __post_init__(self) -> None:
        """Refuse a cross product, and a link to what is not there yet."""
        if len(self.streams) < 2 or len(self.links) != len(self.streams) - 1 or not all(self.links):
            raise HeadraceError(f"{len(self.links)} links cannot join {len(self.streams)} streams")
        for number, link in enumerate(self.links, 1):
            before = self.aliases[:number]
            if any(left[0] not in before or right[0] != self.aliases[number] for left, right in link):
                raise HeadraceError(f"stream '{self.streams[number][0]}' is not linked to a stream before it")

    @property
    def aliases(self) -> tuple[str, ...]:
        """What the streams are called."""
        return tuple(alias for _, alias in self.streams)

    def selected(self, quote: Quote) -> list[str]:
        """Return the outputs, no two of one name."""
        names = [column for _, column in self.outputs]
        return [
            _column(place, quote) + (f" AS {place[0]}_{place[1]}" if names.count(place[1]) > 1 else "") for place in self.outputs
        ]

    def columns(self, alias: str) -> list[str]:
        """Return the columns that are looked at, of one stream."""
        linked = chain.from_iterable(pair for link in self.links for pair in link)
        return sorted({column for one, column in chain(linked, self.outputs) if one == alias})

    def equal(self, number: int, quote: Quote) -> list[str]:
        """Return the equalities that join a stream, by its place."""
        return [f"{_column(left, quote)} = {_column(right, quote)}" for left, right in self.links[number - 1]]


def slid(name: str, join: SlidingJoin) -> BenchQuery:
    """Return the join in all dialects."""
    texts = {"headrace": headrace(join), "spark": spark(join), "flink": flink(join), "duckdb": duckdb(join)}
    return BenchQuery(name, tuple(stream for stream, _ in join.streams), texts, join.range_us + STEP, STEP)


def results_per_second(rates: Sequence[float], range_seconds: float, selectivity: float) -> float:
    """Return how many results streams of these rates (rows/s) have, of whose combinations of rows this share matches.

    Each of the n streams has the newest row of an n-th of the results, and finds rate × range rows in each other window.
    """
    return len(rates) * math.prod(rates) * range_seconds ** (len(rates) - 1) * selectivity


def headrace(join: SlidingJoin) -> str:
    """Return the text headrace takes."""
    sides = [f"SLIDING({stream}, '{span(join.range_us)}') {alias}" for stream, alias in join.streams]
    newest = _greatest(f"{alias}.time" for alias in join.aliases)
    source = _joined(sides, [join.equal(number, plain) for number in range(1, len(sides))])
    return select([f"date_trunc('MILLISECOND', {newest}) AS window_end", *join.selected(plain)], source)


def spark(join: SlidingJoin) -> str:
    """Return the text Spark takes."""
    length, text = f"INTERVAL '{span(join.range_us)}'", ""
    for number, (stream, alias) in enumerate(join.streams):
        kept = ", ".join([*join.columns(alias), "unix_micros(time) AS moment"])
        side = f"({select(['time', f'struct({kept}) AS {alias}'], stream)})"
        if number == 0:
            text = side
            continue
        near = [
            f"rhs.time BETWEEN lhs.time - {length} AND lhs.time + {length}",
            *_near(join, number, "{}.moment", str(join.range_us)),
        ]
        both = f"{text} lhs JOIN {side} rhs ON {' AND '.join([*join.equal(number, plain), *near])}"
        text = f"({select(['lhs.time AS time', *join.aliases[: number + 1]], both)})"
    newest = f"timestamp_micros({_greatest(f'{alias}.moment' for alias in join.aliases)})"
    return select([f"date_trunc('MILLISECOND', {newest}) AS window_end", *join.selected(plain)], text)


def flink(join: SlidingJoin) -> str:
    """Return the text Flink takes."""
    length, copy = interval(join.range_us), "CAST(`time` AS TIMESTAMP(3)) AS `moment`"
    sides, first, conditions = [], join.aliases[0], []
    for number, (stream, alias) in enumerate(join.streams):
        kept = [*map(ticked, join.columns(alias)), "`time`", copy]
        sides.append(f"({select(kept, ticked(stream))}) {alias}")
        near = [f"{alias}.`time` BETWEEN {first}.`time` - {length} AND {first}.`time` + {length}"]
        if number > 0:
            conditions.append([*join.equal(number, ticked), *near, *_near(join, number, "{}.`moment`", length)])
    newest = _greatest(f"{alias}.`moment`" for alias in join.aliases)
    return select([f"{newest} AS window_end", *join.selected(ticked)], _joined(sides, conditions))


def duckdb(join: SlidingJoin) -> str:
    """Return the text DuckDB takes, over the rows of one step and those that they may find.

    That all are near each other is one condition: by conditions between two it would join streams that have no link.
    """
    sides = [f"{quoted(stream)} {alias}" for stream, alias in join.streams]
    source = _joined(sides, [join.equal(number, quoted) for number in range(1, len(sides))])
    moments = ", ".join(f'epoch_us({alias}."time")' for alias in join.aliases)
    last = f"GREATEST({moments}) >= epoch_us(step.window_end) - {STEP} AND GREATEST({moments}) < epoch_us(step.window_end)"
    near = f"GREATEST({moments}) - LEAST({moments}) <= {join.range_us}"
    outputs = ["step.window_end", *join.selected(quoted)]
    return select(outputs, f"(SELECT CAST(? AS TIMESTAMPTZ) AS window_end) step, {source}", f"{near} AND {last}")


def _near(join: SlidingJoin, number: int, moment: str, length: str) -> list[str]:
    """Return that a stream is near those before it but for the first."""
    own, others = moment.format(join.aliases[number]), map(moment.format, join.aliases[1:number])
    return [f"{own} BETWEEN {other} - {length} AND {other} + {length}" for other in others]


def _joined(sides: Sequence[str], conditions: Sequence[Sequence[str]]) -> str:
    joins = (f" JOIN {side} ON {' AND '.join(on)}" for side, on in zip(sides[1:], conditions, strict=True))
    return sides[0] + "".join(joins)


def _greatest(moments: Iterable[str]) -> str:
    return f"GREATEST({', '.join(moments)})"


def _column(place: Place, quote: Quote) -> str:
    return f"{place[0]}.{quote(place[1])}"
