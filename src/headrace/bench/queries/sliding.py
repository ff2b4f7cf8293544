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

from headrace.bench.queries.dialect import (
    SECOND_US,
    NameQuoter,
    backtick_name,
    build_select,
    format_duration,
    format_interval,
    keep_name,
    quote_name,
)
from headrace.bench.query import BenchQuery
from headrace.errors import HeadraceError

DUCKDB_STEP_US = SECOND_US  # interval between evaluations of DuckDB, which has no streams

AliasedColumn = tuple[str, str]  # the alias of a stream, and a column
JoinEqualities = tuple[
    tuple[AliasedColumn, AliasedColumn], ...
]  # equal columns: an earlier stream on the left, the joined one on the right


@dataclass(frozen=True, slots=True)
class SlidingJoinSpec:
    """Streams with their aliases in join order; each stream but the first has a link to earlier ones."""

    streams: tuple[tuple[str, str], ...]
    links: tuple[JoinEqualities, ...]
    outputs: tuple[AliasedColumn, ...]
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

    def render_outputs(self, quote: NameQuoter) -> list[str]:
        """Return the uniquely named outputs."""
        names = [column for _, column in self.outputs]
        return [
            _render_column(output, quote) + (f" AS {output[0]}_{output[1]}" if names.count(output[1]) > 1 else "")
            for output in self.outputs
        ]

    def collect_columns(self, alias: str) -> list[str]:
        """Return the columns used of a stream."""
        linked = chain.from_iterable(pair for link in self.links for pair in link)
        return sorted({column for column_alias, column in chain(linked, self.outputs) if column_alias == alias})

    def render_equalities(self, number: int, quote: NameQuoter) -> list[str]:
        """Return the equalities that join the stream at position `number`."""
        return [f"{_render_column(left, quote)} = {_render_column(right, quote)}" for left, right in self.links[number - 1]]


def build_sliding_join(name: str, join: SlidingJoinSpec) -> BenchQuery:
    """Return the join in all dialects."""
    texts = {
        "headrace": render_headrace_join(join),
        "spark": render_spark_join(join),
        "flink": render_flink_join(join),
        "duckdb": render_duckdb_join(join),
    }
    return BenchQuery(name, tuple(stream for stream, _ in join.streams), texts, join.range_us + DUCKDB_STEP_US, DUCKDB_STEP_US)


def estimate_results_per_second(rates: Sequence[float], range_seconds: float, selectivity: float) -> float:
    """Return the results/s of a join of streams with these rates (rows/s) and this selectivity over combinations of rows.

    Each of the n streams contributes the newest row of 1/n of the results, and joins it with rate × range rows in each other
    window.
    """
    return len(rates) * math.prod(rates) * range_seconds ** (len(rates) - 1) * selectivity


def render_headrace_join(join: SlidingJoinSpec) -> str:
    """Return the join in headrace SQL."""
    sides = [f"SLIDING({stream}, '{format_duration(join.range_us)}') {alias}" for stream, alias in join.streams]
    newest = _render_greatest(f"{alias}.time" for alias in join.aliases)
    source = _join_sides(sides, [join.render_equalities(number, keep_name) for number in range(1, len(sides))])
    return build_select([f"date_trunc('MILLISECOND', {newest}) AS window_end", *join.render_outputs(keep_name)], source)


def render_spark_join(join: SlidingJoinSpec) -> str:
    """Return the join in Spark SQL."""
    range_interval, text = f"INTERVAL '{format_duration(join.range_us)}'", ""
    for number, (stream, alias) in enumerate(join.streams):
        fields = ", ".join([*join.collect_columns(alias), "unix_micros(time) AS moment"])
        side = f"({build_select(['time', f'struct({fields}) AS {alias}'], stream)})"
        if number == 0:
            text = side
            continue
        bounds = [
            f"rhs.time BETWEEN lhs.time - {range_interval} AND lhs.time + {range_interval}",
            *_render_time_bounds(join, number, "{}.moment", str(join.range_us)),
        ]
        joined = f"{text} lhs JOIN {side} rhs ON {' AND '.join([*join.render_equalities(number, keep_name), *bounds])}"
        text = f"({build_select(['lhs.time AS time', *join.aliases[: number + 1]], joined)})"
    newest = f"timestamp_micros({_render_greatest(f'{alias}.moment' for alias in join.aliases)})"
    return build_select([f"date_trunc('MILLISECOND', {newest}) AS window_end", *join.render_outputs(keep_name)], text)


def render_flink_join(join: SlidingJoinSpec) -> str:
    """Return the join in Flink SQL."""
    range_interval, time_copy = format_interval(join.range_us), "CAST(`time` AS TIMESTAMP(3)) AS `moment`"
    sides, first, conditions = [], join.aliases[0], []
    for number, (stream, alias) in enumerate(join.streams):
        projected = [*map(backtick_name, join.collect_columns(alias)), "`time`", time_copy]
        sides.append(f"({build_select(projected, backtick_name(stream))}) {alias}")
        bounds = [f"{alias}.`time` BETWEEN {first}.`time` - {range_interval} AND {first}.`time` + {range_interval}"]
        if number > 0:
            conditions.append(
                [
                    *join.render_equalities(number, backtick_name),
                    *bounds,
                    *_render_time_bounds(join, number, "{}.`moment`", range_interval),
                ]
            )
    newest = _render_greatest(f"{alias}.`moment`" for alias in join.aliases)
    return build_select([f"{newest} AS window_end", *join.render_outputs(backtick_name)], _join_sides(sides, conditions))


def render_duckdb_join(join: SlidingJoinSpec) -> str:
    """Return the join in DuckDB SQL, over the rows of one step and their possible partners.

    One condition bounds the times of all rows: with pairwise conditions DuckDB would join streams that have no link.
    """
    sides = [f"{quote_name(stream)} {alias}" for stream, alias in join.streams]
    source = _join_sides(sides, [join.render_equalities(number, quote_name) for number in range(1, len(sides))])
    moments = ", ".join(f'epoch_us({alias}."time")' for alias in join.aliases)
    in_last_step = (
        f"GREATEST({moments}) >= epoch_us(step.window_end) - {DUCKDB_STEP_US} AND GREATEST({moments}) < epoch_us(step.window_end)"
    )
    in_range = f"GREATEST({moments}) - LEAST({moments}) <= {join.range_us}"
    outputs = ["step.window_end", *join.render_outputs(quote_name)]
    return build_select(
        outputs, f"(SELECT CAST(? AS TIMESTAMPTZ) AS window_end) step, {source}", f"{in_range} AND {in_last_step}"
    )


def _render_time_bounds(join: SlidingJoinSpec, number: int, time_template: str, range_text: str) -> list[str]:
    """Return the time bounds between a stream and the earlier ones except the first."""
    own, others = time_template.format(join.aliases[number]), map(time_template.format, join.aliases[1:number])
    return [f"{own} BETWEEN {other} - {range_text} AND {other} + {range_text}" for other in others]


def _join_sides(sides: Sequence[str], conditions: Sequence[Sequence[str]]) -> str:
    joins = (f" JOIN {side} ON {' AND '.join(on)}" for side, on in zip(sides[1:], conditions, strict=True))
    return sides[0] + "".join(joins)


def _render_greatest(moments: Iterable[str]) -> str:
    return f"GREATEST({', '.join(moments)})"


def _render_column(reference: AliasedColumn, quote: NameQuoter) -> str:
    return f"{reference[0]}.{quote(reference[1])}"
