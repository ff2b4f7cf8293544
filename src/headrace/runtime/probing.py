"""Multi-way joins in the life of a session: which plan of probes holds in a batch."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import SessionError
from headrace.plan.multiway import MultiwayQuery
from headrace.runtime.state import EngineState, QueryState
from headrace.sharing.multiway.asked import Asked, asked
from headrace.sharing.multiway.first import first_orders, most_used, stores_of
from headrace.sharing.multiway.lending import loans
from headrace.sharing.multiway.loan import Loan
from headrace.sharing.multiway.planning import plan_probes
from headrace.sharing.multiway.probes import Choice, Orders, ProbePlan, Target
from headrace.sharing.multiway.relations import Attribute, Join
from headrace.sharing.shared_plan import LiveQuery

Write = Callable[[str, ProbePlan], None]


def replan(
    state: EngineState, live: Mapping[int, LiveQuery], previous: ProbePlan | None, entry: Mapping[str, Any], write: Write
) -> ProbePlan | None:
    """Return the plan of the next batch, None without multi-way joins; `write` stores a new one under a name.

    Queries go on as they were arranged, or as the log entry of the batch says; new ones begin with the first orders that serve.
    """
    apart = entry["sharing"] == "none"
    loose = _loose(previous, entry["probing"])
    mine = [query for query in live.values() if isinstance(query.plan, MultiwayQuery)]
    queries = tuple(asked(query, apart=apart, loose=loose) for query in mine)
    if not queries:
        state.probing, state.stores = "", ()
        return None
    chosen = None if entry["probing"] is None else from_json(entry["probing"], queries)
    choice = choice_of(queries, previous, chosen)
    same = previous is not None and (previous.queries, previous.choice, state.probed_by) == (queries, choice, state.partitions)
    if same and previous is not None and not previous.is_passing:
        return previous
    oldest: dict[int, int] = {}
    for ref in state.stores:
        oldest[ref.store] = min(ref.oldest, oldest.get(ref.store, ref.oldest))
    since = {one.id: born(one, state) for one in queries}
    plan = plan_probes(queries, choice, state.batch, state.partitions, since, previous, oldest)
    if plan == previous:
        return previous
    state.probing, state.probed_by = f"plans/probes-{state.batch:010d}.plan", state.partitions
    there = {one.number for one in plan.stores}
    state.stores = tuple(ref for ref in state.stores if ref.store in there)
    write(state.probing, plan)
    return plan


def imagined(live: Iterable[LiveQuery], previous: ProbePlan | None, partitions: int, sharing: str) -> ProbePlan | None:
    """Return the plan of some queries as if they had all been there from the beginning; those there were keep their orders."""
    mine = [query for query in live if isinstance(query.plan, MultiwayQuery)]
    queries = tuple(asked(query, apart=sharing == "none", loose=_loose(previous, None)) for query in mine)
    if not queries:
        return None
    return plan_probes(queries, choice_of(queries, previous, None), 0, partitions, dict.fromkeys((one.id for one in queries), 0))


def check_sharing(probes: ProbePlan | None, live: Mapping[int, LiveQuery], sharing: str) -> None:
    """Refuse to go on with stores that are shared where nothing is to be, and the other way round."""
    if probes is None or probes.queries[0].id not in live:
        return
    known = probes.queries[0]
    if set(asked(live[known.id], apart=sharing == "none").inputs) != set(known.inputs):
        raise SessionError(
            f"joins in SLIDING windows of this checkpoint cannot go on with multiway={str(sharing)!r}",
            hint="'none' is for good: open it as before, or start with a new checkpoint",
        )


def _loose(previous: ProbePlan | None, decided: Mapping[str, Any] | None) -> frozenset[str]:
    if decided is not None:
        return frozenset(decided["loose"])
    return previous.choice.loose if previous is not None else frozenset()


def with_past(query: LiveQuery, before: Mapping[int, LiveQuery], state: EngineState) -> LiveQuery:
    """Return a new query with the rows that live ones lend it; as it is, if of some input nobody has enough."""
    first = {number: state.queries[number].first_batch for number in before}
    found = loans(query, before.values(), first) if isinstance(query.plan, MultiwayQuery) else ()
    return replace(query, lent=found, since=max(one.since for one in found)) if found else query


def loans_of(query: QueryState) -> tuple[Loan, ...]:
    """Return what a recovered query was lent."""
    return tuple(Loan(*one) for one in query.lent)


def born(query: Asked, state: EngineState) -> int:
    """Return the batch since which rows are stored that a query sees."""
    own = state.queries[query.id].first_batch
    return max((one.first for one in query.lent), default=own)


def choice_of(queries: tuple[Asked, ...], previous: ProbePlan | None, decided: Choice | None) -> Choice:
    """Return the orders of all queries: as decided, as before, or first ones."""
    known = previous.choice if previous is not None else Choice({})
    alive = {side for one in queries for predicate in one.join.predicates for side in predicate.sides}
    stores = {name: by for name, by in stores_of(previous).items() if by is None or by in alive}
    orders: dict[int, Orders] = {}
    for one in queries:
        found = None if decided is None else decided.queries.get(one.id)
        found = found or known.queries.get(one.id) or first_orders(one.join, stores)
        orders[one.id] = _by_living(found, one.join, alive)
        for order in orders[one.id].values():
            stores = {min(t.relation.relations): t.by for t in order if t.relation.is_input} | stores
    kept = {**known.kept, **(decided.kept if decided is not None else {})}
    loose = queries[0].loose
    return Choice(orders, {one: _by_living(kept[one], one, alive) for one in _needed(orders, kept)}, loose)


def _by_living(orders: Orders, join: Join, alive: Container[Attribute]) -> Orders:
    """Return orders in which no store is partitioned by what no query looks at any more."""

    def living(target: Target) -> Target:
        if target.by is None or target.by in alive:
            return target
        return Target(target.relation, most_used(join, target.relation))

    return {start: tuple(map(living, order)) for start, order in orders.items()}


def _needed(orders: Mapping[int, Orders], kept: Mapping[Join, Orders]) -> list[Join]:
    found: dict[Join, None] = {}
    waiting = list(orders.values())
    while waiting:
        for order in waiting.pop().values():
            for target in order:
                if not target.relation.is_input and target.relation not in found:
                    found[target.relation] = None
                    waiting.append(kept[target.relation])
    return list(found)


def to_json(choice: Choice) -> dict[str, Any]:
    """Return a choice for the log; joins that are kept are told by their inputs and predicates."""
    kept = [[_relation_json(relation), _orders_json(found)] for relation, found in choice.kept.items()]
    queries = {str(number): _orders_json(found) for number, found in choice.queries.items()}
    return {"queries": queries, "kept": kept, "loose": sorted(choice.loose)}


def _orders_json(orders: Orders) -> dict[str, Any]:
    return {start: [_target_json(one) for one in order] for start, order in orders.items()}


def _target_json(target: Target) -> list[Any]:
    return [_relation_json(target.relation), None if target.by is None else [target.by.relation, target.by.name]]


def _relation_json(relation: Join) -> list[list[str]]:
    return [sorted(relation.relations), sorted(one.text for one in relation.predicates)]


def from_json(value: Mapping[str, Any], queries: Sequence[Asked]) -> Choice:
    """Read a choice; what is about joins that no live query has any more is left out."""
    chosen = {int(number): _orders(found, queries) for number, found in value["queries"].items()}
    kept = [(_relation(one, queries), _orders(found, queries)) for one, found in value["kept"]]
    alive = {one.id for one in queries}
    return Choice(
        {number: found for number, found in chosen.items() if found is not None and number in alive},
        {relation: found for relation, found in kept if relation is not None and found is not None},
        frozenset(value["loose"]),
    )


def _orders(found: Mapping[str, Any], queries: Sequence[Asked]) -> Orders | None:
    orders = {start: [(_relation(one, queries), by) for one, by in order] for start, order in found.items()}
    if any(relation is None for order in orders.values() for relation, _ in order):
        return None
    return {
        start: tuple(Target(one, None if by is None else Attribute(*by)) for one, by in order if one is not None)
        for start, order in orders.items()
    }


def _relation(found: list[list[str]], queries: Sequence[Asked]) -> Join | None:
    names, texts = found
    joins = (one.join.within(names) for one in queries if one.join.relations.issuperset(names))
    return next((one for one in joins if sorted(p.text for p in one.predicates) == texts), None)
