"""Generate joins of several streams in SLIDING windows and render them in all dialects.

Rows match if the columns of all links are equal, or in a band, and no two event times differ by more than `range_us`. All windows
have the same length, so this is equivalent to: no row is more than `range_us` older than the newest. A result exists as soon as
its newest row arrives; `window_end` is the event time of that row in milliseconds, the precision of Flink's row times.

    headrace   SLIDING(s, range) in FROM
    spark      nested two-way joins: each step passes on one event-time column, because Spark allows no more; the other columns
               used of a stream are packed into a struct, with its event time as a number
    flink      two-way joins by row times. Flink allows two bounds on row times for each join and no other use of them, so the
               other pairs are compared by a copy of the event time that is not a row time
    duckdb     the tables hold the rows of [end - range - step, end), and the parameter is the end: the query returns the results
               whose newest row is in the last step, so evaluating every step returns each result once

A row joins with rows up to a range older or newer, so the number of results grows faster than the rate;
`estimate_results_per_second` returns it.

The generators join three or more streams: the TPC-H relations, or a chain of streams.
Both are designed for a total of NOMINAL_RATE rows/s, windows of five seconds, and proportional keys: TPC-H at scale
NOMINAL_SCALE, a chain with NOMINAL_KEYS. A window then holds a little more than half of every large relation, and 0.63 rows
for each value of a chain: its four-way join has as many results as one of its streams has rows.

    orders, lineitem, customer      rates 17,317, 69,270, 1,732 rows/s; 1 in 150,000 × 1 in 15,000 combinations match;
                                    3 × (17,317 × 69,270 × 1,732) × (5 s)² / (150,000 × 15,000) = 69,000 results/s
    r1 … r4, medium                 25,000 rows/s each; 4 × 25,000⁴ × (5 s)³ / 200,000³ = 24,000 results/s

Every query has between MIN_RESULTS_PER_ROW and MAX_RESULTS_PER_ROW results for each input row. At r times the rate, a join
of n streams has rⁿ times the results, unless the scale or the number of keys grows with the rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

from headrace.bench.driver import tpch
from headrace.bench.queries.dialects import (
    SECOND_US,
    NameQuoter,
    backtick_name,
    build_select,
    format_duration,
    format_interval,
    keep_name,
    quote_name,
)
from headrace.bench.queries.query import BenchQuery
from headrace.errors import HeadraceError
from headrace.model.time import parse_duration

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
    widths: tuple[int | None, ...] = ()
    """By link: its columns are equal (None), or differ by at most this number. Without any, all links are equalities.

    A width of 0 is an equality that is written as two inequalities, as any other condition: a theta join.
    """

    def __post_init__(self) -> None:
        """Reject a cross product, and a link to a later stream."""
        if self.widths and len(self.widths) != len(self.links):
            raise HeadraceError(f"{len(self.widths)} widths cannot belong to {len(self.links)} links")
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

    def render_conditions(self, number: int, quote: NameQuoter) -> list[str]:
        """Return the equalities or bands that join the stream at position `number`."""
        width = self.widths[number - 1] if self.widths else None
        columns = ((_render_column(left, quote), _render_column(right, quote)) for left, right in self.links[number - 1])
        if width is None:
            return [f"{left} = {right}" for left, right in columns]
        shifts = ("", "") if width == 0 else (f" - {width}", f" + {width}")
        return [f"{right} BETWEEN {left}{shifts[0]} AND {left}{shifts[1]}" for left, right in columns]

    @property
    def has_theta_step(self) -> bool:
        """Whether a stream is joined without an equality."""
        return any(width is not None for width in self.widths)


def build_sliding_join(name: str, join: SlidingJoinSpec) -> BenchQuery:
    """Return the join in all dialects that can express it: Spark joins streams only by equalities."""
    texts = {
        "headrace": render_headrace_join(join),
        **({} if join.has_theta_step else {"spark": render_spark_join(join)}),
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
    source = _join_sides(sides, [join.render_conditions(number, keep_name) for number in range(1, len(sides))])
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
        joined = f"{text} lhs JOIN {side} rhs ON {' AND '.join([*join.render_conditions(number, keep_name), *bounds])}"
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
                    *join.render_conditions(number, backtick_name),
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
    source = _join_sides(sides, [join.render_conditions(number, quote_name) for number in range(1, len(sides))])
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


NOMINAL_RATE, NOMINAL_RANGE_S, NOMINAL_SCALE, NOMINAL_KEYS = 100_000.0, 5.0, 0.1, 200_000
MAX_RESULTS_PER_ROW, MIN_RESULTS_PER_ROW = 5.0, 1e-5  # results for each row of input
_JOIN_SIZES = (3, 4)
_MAX_ATTEMPTS = 1_000  # draws before the generator gives up
_RELATION_ALIASES: Mapping[str, str] = {
    "region": "r", "nation": "n", "supplier": "s", "part": "p", "partsupp": "ps", "customer": "c", "orders": "o",
    "lineitem": "l",
}  # fmt: skip
_RELATION_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "region": ("r_name",), "nation": ("n_name",), "supplier": ("s_suppkey", "s_acctbal"),
    "part": ("p_partkey", "p_retailprice"), "partsupp": ("ps_availqty", "ps_supplycost"), "customer": ("c_custkey", "c_acctbal"),
    "orders": ("o_orderkey", "o_totalprice"), "lineitem": ("l_linenumber", "l_quantity", "l_extendedprice"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TpchEdge:
    """Two relations and the column pairs that join them.

    `correlation_factor` corrects the selectivity of pairs whose columns are not independent: how many times more often all of
    them are equal.
    """

    left: str
    right: str
    pairs: tuple[tuple[str, str], ...]
    is_reference: bool = False
    correlation_factor: float = 1.0

    def other_relation(self, relation: str) -> str:
        """Return the relation at the other end of the edge."""
        return self.right if relation == self.left else self.left

    def collect_columns(self) -> set[str]:
        """Return the columns of both relations; column names are unique across relations."""
        return {column for pair in self.pairs for column in pair}

    def estimate_selectivity(self, scale: float) -> float:
        """Return the share of row pairs that match."""
        selectivity, domains = self.correlation_factor, tpch.key_domains(scale)
        for left, right in self.pairs:
            if left in domains:
                left_domain, right_domain = domains[left], domains[right]
                common = range(max(left_domain.start, right_domain.start), min(left_domain.stop, right_domain.stop))
                selectivity *= len(common) / (len(left_domain) * len(right_domain))
        if self.pairs == _PARTSUPP_KEYS:  # a part has only four suppliers
            selectivity *= (
                tpch.count_rows("supplier", scale) * tpch.count_rows("part", scale) / tpch.count_rows("partsupp", scale)
            )
        return selectivity

    def to_equalities(self, known: str) -> JoinEqualities:
        """Return the equalities that join the other relation to `known`, which is already part of the join."""
        left_alias, right_alias = _RELATION_ALIASES[self.left], _RELATION_ALIASES[self.right]
        pairs = (((left_alias, left), (right_alias, right)) for left, right in self.pairs)
        return tuple(pair if known == self.left else (pair[1], pair[0]) for pair in pairs)


def _make_reference_edge(left: str, right: str, *pairs: tuple[str, str]) -> TpchEdge:
    return TpchEdge(left, right, pairs, is_reference=True)


def _make_value_edge(left: str, right: str, *pairs: tuple[str, str], correlation_factor: float = 1.0) -> TpchEdge:
    return TpchEdge(left, right, pairs, correlation_factor=correlation_factor)


_PARTSUPP_KEYS = (("l_partkey", "ps_partkey"), ("l_suppkey", "ps_suppkey"))
TPCH_EDGES = (
    _make_reference_edge("nation", "region", ("n_regionkey", "r_regionkey")),
    _make_reference_edge("supplier", "nation", ("s_nationkey", "n_nationkey")),
    _make_reference_edge("customer", "nation", ("c_nationkey", "n_nationkey")),
    _make_reference_edge("partsupp", "part", ("ps_partkey", "p_partkey")),
    _make_reference_edge("partsupp", "supplier", ("ps_suppkey", "s_suppkey")),
    _make_reference_edge("orders", "customer", ("o_custkey", "c_custkey")),
    _make_reference_edge("lineitem", "orders", ("l_orderkey", "o_orderkey")),
    _make_reference_edge("lineitem", "part", ("l_partkey", "p_partkey")),
    _make_reference_edge("lineitem", "supplier", ("l_suppkey", "s_suppkey")),
    _make_reference_edge("lineitem", "partsupp", *_PARTSUPP_KEYS),
    # columns with common values that are not foreign keys; columns of few distinct values only together with a key
    _make_value_edge(
        "lineitem",
        "orders",
        ("l_orderkey", "o_orderkey"),
        ("l_linestatus", "o_orderstatus"),
        correlation_factor=tpch.SAME_STATUS_SHARE,
    ),
    _make_value_edge("lineitem", "part", ("l_partkey", "p_partkey"), ("l_quantity", "p_size")),
    _make_value_edge("customer", "nation", ("c_custkey", "n_nationkey")),
    _make_value_edge("supplier", "nation", ("s_suppkey", "n_nationkey")),
    _make_value_edge("supplier", "customer", ("s_nationkey", "c_nationkey")),
    _make_value_edge("supplier", "customer", ("s_suppkey", "c_custkey")),
    _make_value_edge("part", "customer", ("p_partkey", "c_custkey")),
    _make_value_edge("orders", "part", ("o_orderkey", "p_partkey")),
    _make_value_edge("partsupp", "lineitem", ("ps_partkey", "l_partkey")),
)


@dataclass(frozen=True, slots=True)
class TpchJoinTree:
    """Relations in join order, and the edge that joins each relation but the first."""

    relations: tuple[str, ...]
    edges: tuple[TpchEdge, ...]

    def estimate_results_per_row(
        self,
        rate: float = NOMINAL_RATE,
        range_s: float = NOMINAL_RANGE_S,
        scale: float = NOMINAL_SCALE,
        streams: Collection[str] = tuple(tpch.ROWS_AT_SCALE_1),
    ) -> float:
        """Return the results per input row if the streams have `rate` rows/s in total, divided by their shares."""
        total_share = sum(tpch.RATE_SHARES[name] for name in streams)
        rates = [rate * tpch.RATE_SHARES[name] / total_share for name in self.relations]
        selectivity = math.prod(edge.estimate_selectivity(scale) for edge in self.edges)
        return estimate_results_per_second(rates, range_s, selectivity) / rate

    def has_independent_edges(self) -> bool:
        """Return whether selectivities multiply because the edges are independent: only references share columns."""
        value_edges = [edge for edge in self.edges if not edge.is_reference]
        return not any(
            edge.collect_columns() & other.collect_columns() for edge in value_edges for other in self.edges if edge != other
        )

    def to_sliding_join(self, range_us: int) -> SlidingJoinSpec:
        """Return the sliding join with this range."""
        outputs = tuple((_RELATION_ALIASES[name], column) for name in self.relations for column in _RELATION_OUTPUTS[name])
        links = tuple(
            edge.to_equalities(edge.other_relation(name)) for name, edge in zip(self.relations[1:], self.edges, strict=True)
        )
        return SlidingJoinSpec(tuple((name, _RELATION_ALIASES[name]) for name in self.relations), links, outputs, range_us)


def draw_join_trees(seed: int) -> Iterator[TpchJoinTree]:
    """Yield distinct join trees of three or four relations, each grown from a drawn relation by drawn edges.

    The first tree contains the two largest relations. The driver offers only streams that some query reads; without these two
    the other streams would get their share of the rate.
    """
    rng = random.Random(seed)  # noqa: S311  a workload, not a secret
    seen: set[frozenset[TpchEdge]] = set()
    for _ in range(_MAX_ATTEMPTS):
        tree = _draw_tree(rng, rng.choice(_JOIN_SIZES))
        edges = frozenset(tree.edges)
        fits = tree.has_independent_edges() and MIN_RESULTS_PER_ROW <= tree.estimate_results_per_row() <= MAX_RESULTS_PER_ROW
        if fits and edges not in seen and (seen or {"lineitem", "orders"} <= set(tree.relations)):
            seen.add(edges)
            yield tree


def _draw_tree(rng: random.Random, size: int) -> TpchJoinTree:
    tree = TpchJoinTree((rng.choice(list(tpch.ROWS_AT_SCALE_1)),), ())
    while len(tree.relations) < size:
        edge = rng.choice([edge for edge in TPCH_EDGES if (edge.left in tree.relations) != (edge.right in tree.relations)])
        relation = edge.right if edge.left in tree.relations else edge.left
        tree = TpchJoinTree((*tree.relations, relation), (*tree.edges, edge))
    return tree


@dataclass(frozen=True, slots=True)
class TpchJoins:
    """Distinct joins of three or four relations by keys and by columns of equal values; many have common sub-joins."""

    size: str = "5 seconds"
    seed: int = (
        6425  # best of 20,000: ten queries read all relations, most the two largest; each has a join in common with another
    )

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        range_us = parse_duration(self.size)
        queries = tuple(
            build_sliding_join(f"q{number}", tree.to_sliding_join(range_us))
            for number, tree in zip(range(1, count + 1), draw_join_trees(self.seed), strict=False)
        )
        return _require_count(queries, count)


@dataclass(frozen=True, slots=True)
class ChainJoins:
    """The linear join of `ways` streams r1, r2 …; each join has selectivity L, M or H.

    The first query uses `levels`, one letter for each join; the others use all other combinations, in a drawn order.
    """

    ways: int = 4
    levels: str = "MMM"
    size: str = "5 seconds"
    seed: int = 7

    def __post_init__(self) -> None:
        """Reject unknown levels, or a number of levels that differs from the number of joins."""
        if len(self.levels) != self.ways - 1 or not self.levels or set(self.levels) - set(tpch.SELECTIVITY_LEVELS):
            raise HeadraceError(
                f"levels is '{self.levels}' for a join of {self.ways} streams",
                hint=f"write one of {', '.join(tpch.SELECTIVITY_LEVELS)} for each join, for example MHL for a join of 4 streams",
            )

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        others = ["".join(levels) for levels in product(tpch.SELECTIVITY_LEVELS, repeat=self.ways - 1)]
        others.remove(self.levels)
        random.Random(self.seed).shuffle(others)  # noqa: S311  a workload, not a secret
        requested, range_us = [self.levels, *others][:count], parse_duration(self.size)
        return _require_count(
            tuple(
                build_sliding_join(f"q{number}", _make_chain_join(levels, range_us)) for number, levels in enumerate(requested, 1)
            ),
            count,
        )


def estimate_chain_results_per_row(
    levels: str, rate: float = NOMINAL_RATE, range_s: float = NOMINAL_RANGE_S, keys: int = NOMINAL_KEYS
) -> float:
    """Return the results per input row of a chain whose streams have `rate` rows/s in total, in equal parts."""
    selectivity = 1 / math.prod(tpch.SELECTIVITY_LEVELS[level].domain_size(keys) for level in levels)
    ways = len(levels) + 1
    return estimate_results_per_second([rate / ways] * ways, range_s, selectivity) / rate


def _make_chain_join(levels: str, range_us: int) -> SlidingJoinSpec:
    names = [f"r{number}" for number in range(1, len(levels) + 2)]
    endings = [tpch.SELECTIVITY_LEVELS[level].suffix for level in levels]
    links = tuple(
        (((left, f"b_{ending}"), (right, f"a_{ending}")),) for left, right, ending in zip(names, names[1:], endings, strict=False)
    )
    return SlidingJoinSpec(tuple((name, name) for name in names), links, tuple((name, "value") for name in names), range_us)


def _require_count(queries: tuple[BenchQuery, ...], count: int) -> tuple[BenchQuery, ...]:
    if len(queries) < count:
        raise HeadraceError(f"{count} queries are requested, but the generator has only {len(queries)} different ones")
    return queries
