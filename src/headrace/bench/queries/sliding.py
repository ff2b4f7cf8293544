"""Render equi-joins of several streams in SLIDING windows, in all dialects.

Rows match if the columns of all links are equal and no two event times differ by more than `range_us`. All windows have the
same length, so this is equivalent to: no row is more than `range_us` older than the newest. A result exists as soon as its
newest row arrives; `window_end` is the event time of that row in milliseconds, the precision of Flink's row times.

    headrace   SLIDING(s, range) in FROM
    spark      nested two-way joins: each step passes on one event-time column, because Spark allows no more; the other columns
               used of a stream are packed into a struct, with its event time as a number
    flink      two-way joins by row times. Flink allows two bounds on row times for each join and no other use of them, so the
               other pairs are compared by a copy of the event time that is not a row time
    duckdb     the tables hold the rows of [end - range - step, end), and the parameter is the end: the query returns the results
               whose newest row is in the last step, so evaluating every step returns each result once

A row joins with rows up to a range older or newer, so the number of results grows faster than the rate;
`estimate_results_per_second` returns it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from headrace.bench.queries.dialect import SECOND, Quote, interval, plain, quoted, select, span, ticked
from headrace.bench.query import BenchQuery
from headrace.errors import HeadraceError

STEP = SECOND  # interval between evaluations of DuckDB, which has no streams

Place = tuple[str, str]  # the alias of a stream, and a column
Link = tuple[tuple[Place, Place], ...]  # equal columns: an earlier stream on the left, the joined one on the right


@dataclass(frozen=True, slots=True)
class SlidingJoin:
    """Streams with their aliases in join order; each stream but the first has a link to earlier ones."""

    streams: tuple[tuple[str, str], ...]
    links: tuple[Link, ...]
    outputs: tuple[Place, ...]
    range_us: int

    def __post_init__(self) -> None:
        """Reject a cross product, and a link to a later stream."""
        if len(self.streams) < 2 or len(self.links) != len(self.streams) - 1 or not all(self.links):
            raise HeadraceError(f"{len(self.links)} links cannot join {len(self.streams)} streams")
        for number, link in enumerate(self.links, 1):
            earlier = self.aliases[:number]
            if any(left[0] not in earlier or right[0] != self.aliases[number] for left, right in link):
                raise HeadraceError(f"stream '{self.streams[number][0]}' is not linked to an earlier stream")

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases of the streams."""
        return tuple(alias for _, alias in self.streams)

    def selected(self, quote: Quote) -> list[str]:
        """Return the uniquely named outputs."""
        names = [column for _, column in self.outputs]
        return [
            _column(output, quote) + (f" AS {output[0]}_{output[1]}" if names.count(output[1]) > 1 else "")
            for output in self.outputs
        ]

    def columns(self, alias: str) -> list[str]:
        """Return the columns used of a stream."""
        linked = chain.from_iterable(pair for link in self.links for pair in link)
        return sorted({column for column_alias, column in chain(linked, self.outputs) if column_alias == alias})

    def equal(self, number: int, quote: Quote) -> list[str]:
        """Return the equalities that join the stream at position `number`."""
        return [f"{_column(left, quote)} = {_column(right, quote)}" for left, right in self.links[number - 1]]


def slid(name: str, join: SlidingJoin) -> BenchQuery:
    """Return the join in all dialects."""
    texts = {"headrace": headrace(join), "spark": spark(join), "flink": flink(join), "duckdb": duckdb(join)}
    return BenchQuery(name, tuple(stream for stream, _ in join.streams), texts, join.range_us + STEP, STEP)


def results_per_second(rates: Sequence[float], range_seconds: float, selectivity: float) -> float:
    """Return the results/s of a join of streams with these rates (rows/s) and this selectivity over combinations of rows.

    Each of the n streams contributes the newest row of 1/n of the results, and joins it with rate × range rows in each other
    window.
    """
    return len(rates) * math.prod(rates) * range_seconds ** (len(rates) - 1) * selectivity


def headrace(join: SlidingJoin) -> str:
    """Return the join in headrace SQL."""
    sides = [f"SLIDING({stream}, '{span(join.range_us)}') {alias}" for stream, alias in join.streams]
    newest = _greatest(f"{alias}.time" for alias in join.aliases)
    source = _joined(sides, [join.equal(number, plain) for number in range(1, len(sides))])
    return select([f"date_trunc('MILLISECOND', {newest}) AS window_end", *join.selected(plain)], source)


def spark(join: SlidingJoin) -> str:
    """Return the join in Spark SQL."""
    range_interval, text = f"INTERVAL '{span(join.range_us)}'", ""
    for number, (stream, alias) in enumerate(join.streams):
        fields = ", ".join([*join.columns(alias), "unix_micros(time) AS moment"])
        side = f"({select(['time', f'struct({fields}) AS {alias}'], stream)})"
        if number == 0:
            text = side
            continue
        bounds = [
            f"rhs.time BETWEEN lhs.time - {range_interval} AND lhs.time + {range_interval}",
            *_near(join, number, "{}.moment", str(join.range_us)),
        ]
        joined = f"{text} lhs JOIN {side} rhs ON {' AND '.join([*join.equal(number, plain), *bounds])}"
        text = f"({select(['lhs.time AS time', *join.aliases[: number + 1]], joined)})"
    newest = f"timestamp_micros({_greatest(f'{alias}.moment' for alias in join.aliases)})"
    return select([f"date_trunc('MILLISECOND', {newest}) AS window_end", *join.selected(plain)], text)


def flink(join: SlidingJoin) -> str:
    """Return the join in Flink SQL."""
    range_interval, time_copy = interval(join.range_us), "CAST(`time` AS TIMESTAMP(3)) AS `moment`"
    sides, first, conditions = [], join.aliases[0], []
    for number, (stream, alias) in enumerate(join.streams):
        projected = [*map(ticked, join.columns(alias)), "`time`", time_copy]
        sides.append(f"({select(projected, ticked(stream))}) {alias}")
        bounds = [f"{alias}.`time` BETWEEN {first}.`time` - {range_interval} AND {first}.`time` + {range_interval}"]
        if number > 0:
            conditions.append([*join.equal(number, ticked), *bounds, *_near(join, number, "{}.`moment`", range_interval)])
    newest = _greatest(f"{alias}.`moment`" for alias in join.aliases)
    return select([f"{newest} AS window_end", *join.selected(ticked)], _joined(sides, conditions))


def duckdb(join: SlidingJoin) -> str:
    """Return the join in DuckDB SQL, over the rows of one step and their possible partners.

    One condition bounds the times of all rows: with pairwise conditions DuckDB would join streams that have no link.
    """
    sides = [f"{quoted(stream)} {alias}" for stream, alias in join.streams]
    source = _joined(sides, [join.equal(number, quoted) for number in range(1, len(sides))])
    moments = ", ".join(f'epoch_us({alias}."time")' for alias in join.aliases)
    in_last_step = (
        f"GREATEST({moments}) >= epoch_us(step.window_end) - {STEP} AND GREATEST({moments}) < epoch_us(step.window_end)"
    )
    in_range = f"GREATEST({moments}) - LEAST({moments}) <= {join.range_us}"
    outputs = ["step.window_end", *join.selected(quoted)]
    return select(outputs, f"(SELECT CAST(? AS TIMESTAMPTZ) AS window_end) step, {source}", f"{in_range} AND {in_last_step}")


def _near(join: SlidingJoin, number: int, time_template: str, range_text: str) -> list[str]:
    """Return the time bounds between a stream and the earlier ones except the first."""
    own, others = time_template.format(join.aliases[number]), map(time_template.format, join.aliases[1:number])
    return [f"{own} BETWEEN {other} - {range_text} AND {other} + {range_text}" for other in others]


def _joined(sides: Sequence[str], conditions: Sequence[Sequence[str]]) -> str:
    joins = (f" JOIN {side} ON {' AND '.join(on)}" for side, on in zip(sides[1:], conditions, strict=True))
    return sides[0] + "".join(joins)


def _greatest(moments: Iterable[str]) -> str:
    return f"GREATEST({', '.join(moments)})"


def _column(reference: Place, quote: Quote) -> str:
    return f"{reference[0]}.{quote(reference[1])}"
