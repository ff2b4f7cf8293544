"""Cost model of window joins: the work of a step of a chain, for all queries that share it.

Work is counted in what the engine does: rows that are indexed and looked up, pairs of rows with equal keys (or in the range of a
comparison), pairs that go on, rows that are sent to another level, and rounds. Rows move where keys change; at a step without an
equality the rows of the leaf are copied to all partitions; the leaves of steps after a shuffle travel with it.

Selectivities of selections are not guessed but counted on samples of query-sets: the queries that share a step need the rows that
any of them selects, and a pair goes on if one of them selects both rows. An equality keeps one of the distinct keys of its larger
side; each other condition is assumed to keep a third. Pure: statistics in, figures out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.expression import Expression
from headrace.plan.window_join import JoinNode, WindowJoinQuery, iter_join_nodes, to_stream_columns
from headrace.planner.join.window_join_plan import (
    ChainPrefix,
    StepExchange,
    WindowJoinLeaf,
    WindowJoinStep,
    extend_chain,
    find_inputs,
    is_reorderable,
    iter_conditions,
    make_inner_node,
    to_equality,
)
from headrace.planner.statistics import DEFAULT_STATISTICS

_MICROS_PER_SECOND = 1_000_000
_THETA_SELECTIVITY = 1 / 3
# Measured nanoseconds on one core (docs/performance.md); only their ratios matter.
_ROW_NS = 105.0  # a row that is indexed or looked up
_COMPARED_NS = 12.0  # a pair with equal keys, whose query-sets are compared
_FOUND_NS = 45.0  # a pair that goes on
_MOVED_NS = 250.0  # a row that is sent to another level
_ROUND_NS = 400_000.0  # a step in one partition, however few rows it has


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Sampled rows of an input that some queries select: bit i of `selected` is sampled row i.

    Only rows in `covered` were tested for all of these queries. `total` is the sum of the shares that each of them selects.
    """

    selected: int
    covered: int
    total: float

    def merge(self, other: SelectedRows) -> SelectedRows:
        """Return the rows that the queries of either select."""
        return SelectedRows(self.selected | other.selected, self.covered & other.covered, self.total + other.total)

    @property
    def share(self) -> float:
        """The share of the rows of the input that any of the queries selects."""
        tested = self.covered.bit_count()
        if not tested:
            return min(1.0, self.total)
        return min(1.0, self.total, max(0.5, (self.selected & self.covered).bit_count()) / tested)


_UNKNOWN_ROWS = SelectedRows(0, 0, 1.0)


@dataclass(frozen=True, slots=True)
class RowSample:
    """A sample of the rows of an input, for each query bit: which rows the query selects, and for which that was tested."""

    selected: Mapping[int, int]
    covered: Mapping[int, int]

    def find_rows(self, bit: int) -> SelectedRows:
        """Return the rows that one query selects."""
        covered = self.covered.get(bit, 0)
        if not covered:
            return _UNKNOWN_ROWS
        selected = self.selected[bit]
        return SelectedRows(selected, covered, max(0.5, selected.bit_count()) / covered.bit_count())


@dataclass(frozen=True, slots=True)
class JoinStatistics:
    """Measured statistics: rows/s of streams, distinct keys by (stream, key), samples by (stream, slot).

    `measured_rows` maps (query id, path length) to the recent number of rows per window after that many steps. `text_bytes` is
    the mean length of the texts that join buffers store, by stream.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    distinct_keys: Mapping[tuple[str, str], int] = field(default_factory=dict)
    samples: Mapping[tuple[str, int], RowSample] = field(default_factory=dict)
    measured_rows: Mapping[tuple[int, int], float] = field(default_factory=dict)
    partitions: int = 1
    text_bytes: Mapping[str, float] = field(default_factory=dict)

    def find_rows(self, stream: str, slot: int, bit: int) -> SelectedRows:
        """Return the rows of an input that one query selects; all of them before the first sample."""
        sample = self.samples.get((stream, slot))
        return _UNKNOWN_ROWS if sample is None else sample.find_rows(bit)

    def estimate_share(self, stream: str, slot: int, bits: Iterable[int]) -> float:
        """Return the share of the rows of an input that any of the queries selects."""
        return merge_rows(self.find_rows(stream, slot, bit) for bit in bits).share


def merge_rows(rows: Iterable[SelectedRows]) -> SelectedRows:
    """Return the rows that any of the queries selects."""
    merged: SelectedRows | None = None
    for each in rows:
        merged = each if merged is None else merged.merge(each)
    return _UNKNOWN_ROWS if merged is None else merged


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step per second of event time: rows, pairs of rows, and rounds in each partition."""

    indexed: float = 0.0
    looked_up: float = 0.0
    compared: float = 0.0
    found: float = 0.0
    moved: float = 0.0
    rounds: float = 0.0

    def plus(self, other: StepWork) -> StepWork:
        """Return the sum."""
        return StepWork(
            self.indexed + other.indexed,
            self.looked_up + other.looked_up,
            self.compared + other.compared,
            self.found + other.found,
            self.moved + other.moved,
            self.rounds + other.rounds,
        )

    @property
    def nanoseconds(self) -> float:
        """The cost, in nanoseconds of work per second of event time."""
        return (
            (self.indexed + self.looked_up) * _ROW_NS
            + self.compared * _COMPARED_NS
            + self.found * _FOUND_NS
            + self.moved * _MOVED_NS
            + self.rounds * _ROUND_NS
        )


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """How often the windows of a query close, and their sizes by input; all in microseconds."""

    step: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What queries with equal windows bring to a step: the rows of each input so far, and their joined rows per round.

    `joined` and `reached` are sums over the queries, before and after the step: what they would join apart.
    """

    rows: tuple[SelectedRows, ...]
    joined: float
    reached: float

    def merge(self, other: StepLoad) -> StepLoad:
        """Return the load of the queries of both."""
        rows = tuple(a.merge(b) for a, b in zip(self.rows, other.rows, strict=True))
        return StepLoad(rows, self.joined + other.joined, self.reached + other.reached)


StepLoads = Mapping[WindowSizes, StepLoad]


def merge_loads(first: StepLoads, second: StepLoads) -> StepLoads:
    """Return the loads of the queries of both."""
    merged = dict(first)
    for windows, load in second.items():
        merged[windows] = merged[windows].merge(load) if windows in merged else load
    return merged


@dataclass(frozen=True, slots=True)
class JoinPrefix:
    """The first inputs of a join in an order, ending with a step; `path_id` is equal for equal steps, whatever their queries.

    `state` is equal for prefixes after which steps cost the same: the inputs, by what their rows are partitioned, and the level.
    Selectivities are those of all conditions among the inputs, before and after the step, and of what the step looks up by.
    """

    chain: ChainPrefix
    path_id: int
    state: int
    cross_products: int
    rates: tuple[float, ...]  # rows per microsecond of the inputs, in their order
    joined_selectivity: float
    reached_selectivity: float
    lookup_selectivity: float
    partitions: int

    @property
    def order(self) -> tuple[int, ...]:
        """The inputs, in their order."""
        return self.chain.order

    def estimate_work(self, loads: StepLoads, found: float | None = None) -> StepWork:
        """Return the work of the last step for the queries of the loads; windows that are multiples of others end with them.

        `found` is the number of joined rows in the round in which all windows close, if it is known.
        """
        work, rate_of_coarser = StepWork(), 0.0
        factor = 1.0 if found is None else found / max(self.estimate_rows(loads), 1e-9)
        for step in sorted({windows.step for windows in loads}, reverse=True):
            rounds = _MICROS_PER_SECOND / step - rate_of_coarser
            rate_of_coarser += rounds
            closing = {windows: load for windows, load in loads.items() if windows.step <= step}
            work = work.plus(self._estimate_rounds(rounds, closing, factor))
        return work

    def _estimate_rounds(self, rounds: float, closing: StepLoads, factor: float) -> StepWork:
        rows = [self.count_rows(position, closing) for position in range(len(self.order))]
        joined = min(sum(load.joined for load in closing.values()), math.prod(rows[:-1]) * self.joined_selectivity)
        reached = factor * self._estimate_reached(rows, closing)
        step, level, leaf = self.chain.steps[-1], self.chain.level, rows[-1]
        leaf_copies = self.partitions if step.exchange is StepExchange.COPY_LEAF else 1
        row_copies = self.partitions if step.exchange is StepExchange.COPY_ROWS else 1
        moved = joined * row_copies if step.repartitions else 0.0
        moved += leaf * (level - 1 + leaf_copies) if level else 0.0
        return StepWork(
            leaf * leaf_copies * rounds,
            joined * row_copies * rounds,
            max(joined * leaf * self.lookup_selectivity, reached) * rounds,
            reached * rounds,
            moved * rounds,
            self.partitions * rounds,
        )

    def count_rows(self, position: int, closing: StepLoads) -> float:
        """Return the rows of an input in a round: of the longest window, but at most those of all windows apart."""
        rate = self.rates[position]
        apart = sum(rate * windows.sizes[position] * load.rows[position].share for windows, load in closing.items())
        if len(closing) == 1:
            return apart
        longest = max(windows.sizes[position] for windows in closing)
        return min(apart, rate * longest * merge_rows(load.rows[position] for load in closing.values()).share)

    def estimate_rows(self, loads: StepLoads) -> float:
        """Return the joined rows after the step, in the round in which all windows close."""
        return self._estimate_reached([self.count_rows(position, loads) for position in range(len(self.order))], loads)

    def _estimate_reached(self, rows: Sequence[float], loads: StepLoads) -> float:
        return min(sum(load.reached for load in loads.values()), math.prod(rows) * self.reached_selectivity)


@dataclass(frozen=True, slots=True)
class PathIds:
    """Numbers for equal paths: queries share a step if the numbers of their paths are equal, and their groups are."""

    _known: dict[tuple[int, WindowJoinLeaf | None, WindowJoinStep], int] = field(default_factory=dict)

    def find(self, parent: JoinPrefix | None, chain: ChainPrefix) -> int:
        """Return the number of the path of a chain whose last step follows `parent`."""
        key = (-1, chain.first_leaf, chain.steps[-1]) if parent is None else (parent.path_id, None, chain.steps[-1])
        return self._known.setdefault(key, len(self._known))


@dataclass(frozen=True, slots=True)
class Subjoin:
    """The join of some inputs of a query: equal for queries that could share it."""

    inputs: frozenset[tuple[str, int]]
    equalities: frozenset[frozenset[tuple[object, ...]]]


@dataclass(frozen=True, slots=True, eq=False)
class JoinTemplate:
    """What queries have in common that join the same inputs in the same windows by the same conditions, but select other rows.

    `plan` is that of any of the queries; `inputs` are (stream, slot); `rates` are in rows per microsecond.
    """

    plan: WindowJoinQuery
    statistics: JoinStatistics
    conditions: tuple[Expression, ...]
    windows: WindowSizes
    inputs: tuple[tuple[str, int], ...]
    rates: tuple[float, ...]
    is_reorderable: bool
    _paths: PathIds
    _nodes: tuple[JoinNode, ...]
    _prefixes: dict[tuple[int, ...], JoinPrefix] = field(default_factory=dict)
    _states: dict[tuple[object, ...], int] = field(default_factory=dict)
    _selectivities: dict[frozenset[int], float] = field(default_factory=dict)
    _subjoins: dict[frozenset[int], Subjoin] = field(default_factory=dict)

    @staticmethod
    def of(plan: WindowJoinQuery, statistics: JoinStatistics, paths: PathIds) -> JoinTemplate:
        """Return the template of a query; `paths` are shared by all templates that are compared."""
        inputs = tuple((source.stream, plan.stream_occurrence(index)) for index, source in enumerate(plan.inputs))
        default_rate, is_inner = float(DEFAULT_STATISTICS.rate), is_reorderable(plan)
        return JoinTemplate(
            plan,
            statistics,
            tuple(iter_conditions(plan)),
            WindowSizes(plan.ends.step, tuple(source.window.size for source in plan.inputs)),
            inputs,
            tuple((statistics.rates.get(name) or default_rate) / _MICROS_PER_SECOND for name, _ in inputs),
            is_inner,
            paths,
            () if is_inner else tuple(iter_join_nodes(plan.tree)),
        )

    def find_rows(self, bit: int) -> tuple[SelectedRows, ...]:
        """Return the rows of each input that a query selects."""
        return tuple(self.statistics.find_rows(stream, slot, bit) for stream, slot in self.inputs)

    def get_prefix(self, order: tuple[int, ...]) -> JoinPrefix:
        """Return the prefix with these inputs, of which there are two or more."""
        if order not in self._prefixes:
            parent = self.get_prefix(order[:-1]) if len(order) > 2 else None
            joined, index = frozenset(order[:-1]), order[-1]
            node = self._nodes[len(order) - 2] if self._nodes else make_inner_node(self.conditions, 0, joined, index)
            chain = extend_chain(self.plan, ChainPrefix(order[:-1]) if parent is None else parent.chain, node)
            keys = [self._estimate_selectivity(c) for c in self.conditions if to_equality(c, joined, index) is not None]
            joined_selectivity, reached = self._find_selectivity(joined), self._find_selectivity(joined | {index})
            if not keys:  # a comparison is searched in a sorted index
                keys = [_THETA_SELECTIVITY] if reached < joined_selectivity else [1.0]
            self._prefixes[order] = JoinPrefix(
                chain,
                self._paths.find(parent, chain),
                self._states.setdefault((joined | {index}, chain.partitioning, chain.level), len(self._states)),
                (0 if parent is None else parent.cross_products) + (not node.equalities),
                tuple(self.rates[i] for i in order),
                joined_selectivity,
                reached,
                math.prod(keys),
                self.statistics.partitions,
            )
        return self._prefixes[order]

    def list_prefixes(self, order: tuple[int, ...]) -> list[JoinPrefix]:
        """Return the prefixes of an order that end with a step."""
        return [self.get_prefix(order[:length]) for length in range(2, len(order) + 1)]

    def make_load(self, prefix: JoinPrefix, rows: Sequence[SelectedRows], queries: int = 1) -> StepLoads:
        """Return the load of queries that select these rows together, and each of them an equal part of the total."""
        ordered = tuple(rows[index] for index in prefix.order)
        sizes = tuple(self.windows.sizes[index] for index in prefix.order)
        counts = [rate * size * each.total / queries for rate, size, each in zip(prefix.rates, sizes, ordered, strict=True)]
        joined = queries * math.prod(counts[:-1]) * prefix.joined_selectivity
        reached = queries * math.prod(counts) * prefix.reached_selectivity
        return {WindowSizes(self.windows.step, sizes): StepLoad(ordered, joined, reached)}

    def find_subjoin(self, among: frozenset[int]) -> Subjoin:
        """Return a description of the join of some inputs: equal for queries that could share it."""
        if among not in self._subjoins:
            equalities = (c for c in self.conditions if _split_equality(c) is not None and find_inputs(c) <= among)
            texts = frozenset(frozenset(self._describe(side) for side in _split_equality(c) or ()) for c in equalities)
            self._subjoins[among] = Subjoin(frozenset(self.inputs[index] for index in among), texts)
        return self._subjoins[among]

    def _describe(self, side: Expression) -> tuple[object, ...]:
        if len(find_inputs(side)) == 1:
            return self.inputs[min(find_inputs(side))], str(to_stream_columns(side))
        return tuple(self.inputs[index] for index in sorted(find_inputs(side))), str(side)

    def _find_selectivity(self, among: frozenset[int]) -> float:
        if among not in self._selectivities:
            held = [c for c in self.conditions if len(find_inputs(c)) > 1 and find_inputs(c) <= among]
            self._selectivities[among] = math.prod(map(self._estimate_selectivity, held))
        return self._selectivities[among]

    def _estimate_selectivity(self, condition: Expression) -> float:
        sides = _split_equality(condition)
        if sides is None:
            return _THETA_SELECTIVITY
        known = [count for side in sides if (count := self._find_distinct(side)) is not None]
        return 1.0 / max(1.0, *(known or [float(DEFAULT_STATISTICS.default_key_count)]))

    def _find_distinct(self, expression: Expression) -> float | None:
        """Return the distinct values of one side of an equality in a window; None if they were not counted."""
        index = min(find_inputs(expression))
        known = self.statistics.distinct_keys.get((self.inputs[index][0], str(to_stream_columns(expression))))
        return None if known is None else min(self.rates[index] * self.windows.sizes[index], float(known))


def _split_equality(condition: Expression) -> tuple[Expression, Expression] | None:
    for index in find_inputs(condition):
        pair = to_equality(condition, find_inputs(condition) - {index}, index)
        if pair is not None:
            return pair.left, pair.right
    return None
