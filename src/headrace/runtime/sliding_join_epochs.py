"""Plans of sliding joins by batch: derive the plan for the next batch from the live queries and the log entry."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import SessionError
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.planner.join.backfill import plan_backfills
from headrace.planner.join.join_graph import Attribute, JoinGraph
from headrace.planner.join.normalized_join import NormalizedJoin, normalize_join
from headrace.planner.join.sliding_join_plan import (
    OrdersByRelation,
    ProbeOrderChoice,
    ProbeTarget,
    SlidingJoinPlan,
)
from headrace.planner.join.sliding_join_planner import (
    choose_initial_orders,
    choose_partition_attribute,
    find_input_partitioning,
    plan_sliding_joins,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.storage.store import make_attempt_key

if TYPE_CHECKING:  # otherwise `headrace explain` and `headrace sql URL` would load the engine
    from headrace.runtime.batch_log import BatchLogEntry
    from headrace.runtime.engine_state import EngineState

SlidingJoinPlanWriter = Callable[[str, SlidingJoinPlan], None]


def replan_sliding_joins(
    state: EngineState,
    live: Mapping[int, LiveQuery],
    previous: SlidingJoinPlan | None,
    entry: BatchLogEntry,
    write: SlidingJoinPlanWriter,
) -> SlidingJoinPlan | None:
    """Return the plan for the next batch, or None without sliding joins; `write` stores a new plan under its file name.

    Queries keep their probe orders unless the log entry of the batch changes them; new queries start with initial probe orders.
    """
    unshared = entry.sharing == "none"
    residual = _decided_residual_predicates(previous, entry.probe_orders)
    joins = [query for query in live.values() if isinstance(query.plan, SlidingJoinQuery)]
    queries = tuple(normalize_join(query, isolated=unshared, residual_texts=residual) for query in joins)
    if not queries:
        state.sliding_join_plan_file, state.store_refs = "", ()
        return None
    chosen = None if entry.probe_orders is None else choice_from_json(entry.probe_orders, queries)
    choice = choose_orders(queries, previous, chosen)
    same = previous is not None and (previous.queries, previous.choice, state.sliding_join_plan_partitions) == (
        queries,
        choice,
        state.partitions,
    )
    if same and previous is not None and not previous.is_transitional:
        return previous
    oldest: dict[int, int] = {}
    for ref in state.store_refs:
        oldest[ref.store] = min(ref.oldest_batch, oldest.get(ref.store, ref.oldest_batch))
    since = {query.id: first_visible_batch(query, state) for query in queries}
    plan = plan_sliding_joins(queries, choice, state.batch, state.partitions, since, previous, oldest)
    if plan == previous:
        return previous
    state.sliding_join_plan_file = make_attempt_key("plans", f"probes-{state.batch:010d}", ".plan")
    state.sliding_join_plan_partitions = state.partitions
    planned_stores = {store.number for store in plan.stores}
    state.store_refs = tuple(ref for ref in state.store_refs if ref.store in planned_stores)
    write(state.sliding_join_plan_file, plan)
    return plan


def plan_hypothetical_joins(
    live: Iterable[LiveQuery], previous: SlidingJoinPlan | None, partitions: int, *, is_shared: bool
) -> SlidingJoinPlan | None:
    """Return a plan as if all these queries had run from the start; queries of the `previous` plan keep their probe orders."""
    joins = [query for query in live if isinstance(query.plan, SlidingJoinQuery)]
    queries = tuple(
        normalize_join(query, isolated=not is_shared, residual_texts=_decided_residual_predicates(previous, None))
        for query in joins
    )
    if not queries:
        return None
    return plan_sliding_joins(
        queries, choose_orders(queries, previous, None), 0, partitions, dict.fromkeys((query.id for query in queries), 0)
    )


def check_sharing_mode(probes: SlidingJoinPlan | None, live: Mapping[int, LiveQuery], *, is_shared: bool) -> None:
    """Raise SessionError if the checkpoint's state stores are shared and those of the session are not, or the reverse."""
    if probes is None or probes.queries[0].id not in live:
        return
    query = probes.queries[0]
    if set(normalize_join(live[query.id], isolated=not is_shared).inputs) != set(query.inputs):
        raise SessionError(
            f"joins in SLIDING windows of this checkpoint cannot continue with sliding_sharing={is_shared}",
            hint="use the earlier setting, or start with a new checkpoint",
        )


def _decided_residual_predicates(previous: SlidingJoinPlan | None, decided: Mapping[str, Any] | None) -> frozenset[str]:
    if decided is not None:
        return frozenset(decided["residual"])
    return previous.choice.residual_texts if previous is not None else frozenset()


def add_backfill(query: LiveQuery, before: Mapping[int, LiveQuery], state: EngineState) -> tuple[LiveQuery, str]:
    """Return a new query with backfills from the state of live queries, as far as that covers its inputs, and a note."""
    if not isinstance(query.plan, SlidingJoinQuery):
        return query, ""
    first = {number: state.queries[number].first_batch for number in before}
    plan = plan_backfills(query, before.values(), first, state.watermark_of)
    if not plan.backfills:
        return query, plan.note
    return replace(query, backfills=plan.backfills, since=max(item.since for item in plan.backfills)), plan.note


def first_visible_batch(query: NormalizedJoin, state: EngineState) -> int:
    """Return the first batch of which a query sees stored rows of any input."""
    return min((state.queries[query.id].first_batch, *(backfill.first_batch for backfill in query.backfills)))


def choose_orders(
    queries: tuple[NormalizedJoin, ...], previous: SlidingJoinPlan | None, decided: ProbeOrderChoice | None
) -> ProbeOrderChoice:
    """Return the probe orders of all queries: the decided, else the previous, else initial ones."""
    current = previous.choice if previous is not None else ProbeOrderChoice({})
    attributes = {side for query in queries for predicate in query.join_graph.predicates for side in predicate.sides}
    stores = {name: by for name, by in find_input_partitioning(previous).items() if by is None or by in attributes}
    orders: dict[int, OrdersByRelation] = {}
    for query in queries:
        query_orders = None if decided is None else decided.queries.get(query.id)
        query_orders = query_orders or current.queries.get(query.id) or choose_initial_orders(query.join_graph, stores)
        orders[query.id] = _drop_unused_partitioning(query_orders, query.join_graph, attributes)
        for order in orders[query.id].values():
            stores = {min(t.relation.relations): t.partitioned_by for t in order if t.relation.is_input} | stores
    kept = {**current.materialized, **(decided.materialized if decided is not None else {})}
    residual = queries[0].residual_texts
    return ProbeOrderChoice(
        orders,
        {join: _drop_unused_partitioning(kept[join], join, attributes) for join in _list_needed_joins(orders, kept)},
        residual,
    )


def _drop_unused_partitioning(orders: OrdersByRelation, join: JoinGraph, attributes: Container[Attribute]) -> OrdersByRelation:
    """Return the orders with every store partitioned by an attribute that a live query still joins on."""

    def repartition(target: ProbeTarget) -> ProbeTarget:
        if target.partitioned_by is None or target.partitioned_by in attributes:
            return target
        return ProbeTarget(target.relation, choose_partition_attribute(join, target.relation))

    return {start: tuple(map(repartition, order)) for start, order in orders.items()}


def _list_needed_joins(orders: Mapping[int, OrdersByRelation], kept: Mapping[JoinGraph, OrdersByRelation]) -> list[JoinGraph]:
    needed: dict[JoinGraph, None] = {}
    pending = list(orders.values())
    while pending:
        for order in pending.pop().values():
            for target in order:
                if not target.relation.is_input and target.relation not in needed:
                    needed[target.relation] = None
                    pending.append(kept[target.relation])
    return list(needed)


def choice_to_json(choice: ProbeOrderChoice) -> dict[str, Any]:
    """Return a choice as a JSON value for the log; a stored join is identified by its inputs and predicates."""
    kept = [[_relation_to_json(relation), _orders_to_json(orders)] for relation, orders in choice.materialized.items()]
    queries = {str(number): _orders_to_json(orders) for number, orders in choice.queries.items()}
    return {"queries": queries, "materialized": kept, "residual": sorted(choice.residual_texts)}


def _orders_to_json(orders: OrdersByRelation) -> dict[str, Any]:
    return {start: [_target_to_json(target) for target in order] for start, order in orders.items()}


def _target_to_json(target: ProbeTarget) -> list[Any]:
    return [
        _relation_to_json(target.relation),
        None if target.partitioned_by is None else [target.partitioned_by.relation, target.partitioned_by.name],
    ]


def _relation_to_json(relation: JoinGraph) -> list[list[str]]:
    return [sorted(relation.relations), sorted(predicate.text for predicate in relation.predicates)]


def choice_from_json(value: Mapping[str, Any], queries: Sequence[NormalizedJoin]) -> ProbeOrderChoice:
    """Read a choice from its JSON value; omit joins that no live query has any more."""
    chosen = {int(number): _orders_from_json(orders, queries) for number, orders in value["queries"].items()}
    kept = [
        (_relation_from_json(relation, queries), _orders_from_json(orders, queries)) for relation, orders in value["materialized"]
    ]
    live = {query.id for query in queries}
    return ProbeOrderChoice(
        {number: orders for number, orders in chosen.items() if orders is not None and number in live},
        {relation: orders for relation, orders in kept if relation is not None and orders is not None},
        frozenset(value["residual"]),
    )


def _orders_from_json(value: Mapping[str, Any], queries: Sequence[NormalizedJoin]) -> OrdersByRelation | None:
    orders = {start: [(_relation_from_json(target, queries), by) for target, by in order] for start, order in value.items()}
    if any(relation is None for order in orders.values() for relation, _ in order):
        return None
    return {
        start: tuple(ProbeTarget(join, None if by is None else Attribute(*by)) for join, by in order if join is not None)
        for start, order in orders.items()
    }


def _relation_from_json(value: list[list[str]], queries: Sequence[NormalizedJoin]) -> JoinGraph | None:
    names, texts = value
    joins = (query.join_graph.subgraph(names) for query in queries if query.join_graph.relations.issuperset(names))
    return next((join for join in joins if sorted(p.text for p in join.predicates) == texts), None)
