"""The cache of a worker: checkpoint files as objects that are ready to use – plans, queries and state.

Workers keep no state between batches that they could not read again. The files are immutable, and a worker caches a file for as
long as batches refer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from headrace.connectors import SinkSet, sink_set_from_json
from headrace.engine.joins.joiner import Joiner, build_joiners
from headrace.engine.joins.kept_pairs import KeptPairStore
from headrace.engine.operators.finalize import ResultShape, list_required_components, shape_of
from headrace.engine.operators.query_sets import QuerySetAssigner
from headrace.engine.operators.selection import CellAssigner
from headrace.model.expression import Call, Expression
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.planner.components import Component
from headrace.planner.group_members import MemberTable
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.plan_change import PlanChange, apply_changes
from headrace.planner.predicate_index import derive_dimensions
from headrace.planner.shared_plan import LiveQuery, StreamPlan, Subscriber

_MAX_CHECKPOINTS = 8


class WorkerCache:
    """Loaded files of one checkpoint, by file name; those of queries, which are many, by the number of the query."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._loaded: dict[str | int, Any] = {}
        self._attempt = (-1, "")
        self._loaded_in_attempt: set[str | int] = set()
        self.kept_pairs = KeptPairStore()

    def begin_attempt(self, batch: int, attempt: str) -> None:
        """Forget what another attempt at the same batch loaded: the files that the driver wrote for it may differ by now."""
        if (batch, attempt) == self._attempt:
            return
        if batch == self._attempt[0]:
            for file in self._loaded_in_attempt:
                self._loaded.pop(file, None)
        self._attempt, self._loaded_in_attempt = (batch, attempt), set()

    def load(self, file: str, read: Callable[[str], Any], prepare: Callable[[Any], Any] | None = None) -> Any:
        """Return a file, read and then converted by `prepare` on first access."""
        if file not in self._loaded:
            self._loaded_in_attempt.add(file)
            content = read(file)
            self._loaded[file] = content if prepare is None else prepare(content)
        return self._loaded[file]

    def load_query(self, number: int, read: Callable[[int], LoadedQuery]) -> LoadedQuery:
        """Return a query, read on first access."""
        query: LoadedQuery | None = self._loaded.get(number)
        if query is None:
            self._loaded_in_attempt.add(number)
            query = self._loaded[number] = read(number)
        return query

    def has(self, file: str) -> bool:
        """Return whether a file is loaded."""
        return file in self._loaded

    def evict_except(self, referenced: Container[str | int]) -> None:
        """Evict all files and queries but these.

        A mapped file takes memory even after it is deleted, and plans of past epochs consist of many objects that the garbage
        collector would traverse.
        """
        for file in [file for file in self._loaded if file not in referenced]:
            del self._loaded[file]


_CACHES: dict[tuple[str, str], WorkerCache] = {}
"""The caches of this process, by directory and identity of the checkpoint, oldest first."""


def get_worker_cache(directory: str, checkpoint_id: str) -> WorkerCache:
    """Return the cache of a checkpoint; those of sessions that have ended are dropped after a while."""
    cache = _CACHES.get((directory, checkpoint_id))
    if cache is None:  # asked for each query of a batch, and several times
        cache = _CACHES.setdefault((directory, checkpoint_id), WorkerCache())
        while len(_CACHES) > _MAX_CHECKPOINTS:
            del _CACHES[next(iter(_CACHES))]
    return cache


class LoadedPlan:
    """A stream plan with the cell assigners and query-set assigners of its operators.

    The plan after it takes over the operators that are the same, with their assigners (`change`).
    """

    def __init__(
        self,
        plan: StreamPlan,
        table: MemberTable[Subscriber] | None = None,
        assigners: Mapping[int, CellAssigner] | None = None,
    ) -> None:
        """Take a plan, and its known cell assigners by identity of the operator; they initialize lazily."""
        self.plan = plan
        self._table: MemberTable[Subscriber] = MemberTable() if table is None else table
        self._unused: tuple[frozenset[int], frozenset[Expression]] | None = None
        known = assigners or {}
        self.cell_assigners = {
            id(operator): known.get(id(operator)) or CellAssigner(operator.predicate_index) for operator in plan.operators
        }
        self.set_assigners = [
            QuerySetAssigner([subscriber.predicate for subscriber in buffer.subscribers], buffer.query_bits)
            for buffer in plan.join_buffers
        ]

    def change(self, changes: Sequence[PlanChange]) -> LoadedPlan:
        """Return the plan after some changes."""
        changed, before = apply_changes(self.plan, changes, self._table), self.plan.operators
        assigners = {}
        for operator, origin in zip(changed.plan.operators, changed.origins, strict=True):
            if origin is not None:
                assigner = self.cell_assigners[id(before[origin])]
                is_same = operator is before[origin]
                assigners[id(operator)] = assigner if is_same else CellAssigner(operator.predicate_index, assigner)
        return LoadedPlan(changed.plan, self._table, assigners)

    def find_unused(self, live: frozenset[int]) -> frozenset[Expression]:
        """Return the computed expressions that only queries outside `live` use: dimensions, keys, arguments of aggregates."""
        if self._unused is None or self._unused[0] != live:
            subscribers = list(self.plan.subscribers)
            living = [subscriber for subscriber in subscribers if subscriber.query_id in live]
            is_shared = len(living) < len(subscribers)
            unused = _collect_expressions(subscribers) - _collect_expressions(living) if is_shared else frozenset()
            self._unused = live, unused
        return self._unused[1]

    def get_cell_assigner(self, operator: Any) -> CellAssigner:
        """Return the cell assigner of an operator of the plan."""
        return self.cell_assigners[id(operator)]


def _collect_expressions(subscribers: Sequence[Subscriber]) -> frozenset[Expression]:
    """Return the expressions that the operators of these subscribers compute from rows; columns are not computed."""
    predicates = [subscriber.predicate for subscriber in subscribers]
    expressions: set[Expression] = {*predicates, *(dimension.expression for dimension in derive_dimensions(predicates))}
    for subscriber in subscribers:
        expressions.update(subscriber.keys, subscriber.outputs)
        expressions.update(argument for component in subscriber.components for argument in component.args)
    return frozenset(expression for expression in expressions if isinstance(expression, Call))


_INTERNED_SHAPES: dict[ResultShape, ResultShape] = {}


class LoadedQuery:
    """A live query with its sinks and, for an aggregation or a join, the values derived from its plan."""

    def __init__(self, live: LiveQuery, sinks: SinkSet) -> None:
        """`sinks` are those with which the query became live, or that it had when the session was opened."""
        self.live, self.sinks, self.streams = live, sinks, live.plan.streams
        self._cached_joiners: tuple[tuple[int, tuple[JoinOrderVersion, ...], tuple[int, ...]], tuple[Joiner, ...]] | None = None

    @staticmethod
    def from_content(content: tuple[LiveQuery, dict[str, Any] | None]) -> LoadedQuery:
        """Return the query that a query file holds."""
        live, sink = content
        return LoadedQuery(live, sink_set_from_json(sink))

    @property
    def plan(self) -> LogicalQuery:
        """The logical plan of the query."""
        return self.live.plan

    @property
    def aggregate_plan(self) -> AggregateQuery:
        """The plan; only for a query that aggregates."""
        assert isinstance(self.live.plan, AggregateQuery)
        return self.live.plan

    def get_joiners(
        self, bit: int, order_versions: tuple[JoinOrderVersion, ...], fetched_inputs: tuple[int, ...]
    ) -> tuple[Joiner, ...]:
        """Return the joiners of a window join with this bit under these join order versions."""
        variant = bit, order_versions, fetched_inputs
        if self._cached_joiners is None or self._cached_joiners[0] != variant:
            self._cached_joiners = (
                variant,
                build_joiners(replace(self.live, bit=bit, order_versions=order_versions), fetched_inputs),
            )
        return self._cached_joiners[1]

    @cached_property
    def result_shape(self) -> ResultShape:
        """Queries of one shape are finalized together; equal shapes are interned, so that they compare by identity."""
        shape = shape_of(self.aggregate_plan)
        return _INTERNED_SHAPES.setdefault(shape, shape)

    @cached_property
    def required_components(self) -> tuple[Component, ...]:
        """The components that the aggregates of the query are lowered from."""
        return list_required_components(self.aggregate_plan)
