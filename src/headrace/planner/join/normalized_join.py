"""Sliding joins in normalized names, so that equal parts of different queries are equal values.

A relation is a stream, or `stream#2` for the second input of a query over the same stream. Column `c` of relation r has one name
in all queries; so have conditions, and therefore the join graphs that the optimizers compare.

Residual predicates are conditions that are evaluated after a join, so that queries with and without them share it. Where one
query joins two streams by their keys, and another by the keys and a further condition, both can share the join by the keys if the
further condition does not reduce the rows much: it is then evaluated row by row, for the bits of the queries that have it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.model.expression import TRUE, Call, Column, Expression, column_names, substitute_columns, walk_expression
from headrace.model.record import record
from headrace.model.types import Schema
from headrace.plan.sliding_join import SlidingInput, SlidingJoinQuery
from headrace.plan.window_join import split_joined_name
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate
from headrace.planner.query_bits import FormerBit
from headrace.planner.shared_plan import Backfill, LiveQuery

_SEPARATOR = "\x1f"  # cannot occur in names


def qualify_column(relation: str, name: str) -> str:
    """Return the name of column `name` of a relation in joined rows."""
    return f"{relation}{_SEPARATOR}{name}"


def time_column_of(relation: str) -> str:
    """Return the name of the column that holds the event times of the rows of a relation."""
    return qualify_column(relation, "")


def relation_of_column(column: str) -> str:
    """Return the relation of a column of joined rows."""
    return column.partition(_SEPARATOR)[0]


def format_expression(text: object) -> str:
    """Return an expression over joined columns as users write it."""
    return str(text).replace(_SEPARATOR, ".")


def find_relations(condition: Expression) -> frozenset[str]:
    """Return the relations that an expression over joined columns refers to."""
    return frozenset(map(relation_of_column, column_names(condition)))


@record("normalized-join")
@dataclass(frozen=True, slots=True)
class NormalizedJoin:
    """A live sliding join: its inputs by relation, its conditions and outputs over joined columns.

    `join` is the view of the optimizers, a join graph: relations, and the conditions over several of them. It omits residual
    predicates, those whose text is in `residual_texts`, where an equality remains: these are evaluated on rows that were joined
    by the other predicates. Rows of `outer_relations` that find no partner are results, too (see `SlidingJoinQuery`).
    """

    id: int
    name: str
    bit: int
    since: int
    streams: tuple[str, ...]
    inputs: Mapping[str, SlidingInput]
    conditions: tuple[Expression, ...]
    output: tuple[Expression, ...]
    schema: Schema
    backfills: tuple[Backfill, ...] = ()
    residual_texts: frozenset[str] = frozenset()
    former_bits: tuple[FormerBit, ...] = ()
    outer_relations: tuple[str, ...] = ()
    emits_matches: bool = True
    predicate: Expression = TRUE
    join_graph: JoinGraph = field(init=False, repr=False, compare=False)
    columns: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the join graph, and the joined columns that are read after the selection."""
        object.__setattr__(self, "join_graph", JoinGraph(frozenset(self.inputs), frozenset(self._iter_join_predicates())))
        expressions = (*self.conditions, self.predicate, *self.output)
        object.__setattr__(self, "columns", frozenset(name for expression in expressions for name in column_names(expression)))

    @property
    def predicates(self) -> frozenset[JoinPredicate]:
        """All conditions over two or more relations."""
        predicates = map(to_predicate, self.conditions)
        return frozenset(predicate for predicate in predicates if predicate is not None)

    def _iter_join_predicates(self) -> Iterator[JoinPredicate]:
        """Yield the predicates of the join graph: all but the residual ones, unless these are all that connect two relations."""
        predicates = self.predicates
        joined_by_equality = {
            predicate.relations for predicate in predicates if predicate.sides and predicate.text not in self.residual_texts
        }
        yield from (
            predicate
            for predicate in predicates
            if predicate.text not in self.residual_texts or predicate.relations not in joined_by_equality
        )

    @property
    def lateness(self) -> int:
        """The allowed lateness: the maximum over all inputs."""
        return max(join_input.lateness for join_input in self.inputs.values())

    def is_due(self, condition: Expression, joined: frozenset[str], added: frozenset[str]) -> bool:
        """Return whether a condition is evaluated when relations are added to joined ones.

        A condition of an outer join on one input decides about pairs; it selects no rows.
        """
        relations = find_relations(condition)
        if self.outer_relations:
            return True
        return relations <= joined | added and not relations <= joined and not relations <= added

    def get_partner(self, relation: str) -> str:
        """Return the other relation of an outer join."""
        (partner,) = self.inputs.keys() - {relation}
        return partner

    def get_wait(self, relation: str) -> int:
        """Return how far the watermark must have passed a row of an outer relation until no partner can come any more."""
        return self.inputs[relation].length + self.inputs[self.get_partner(relation)].lateness

    def get_retention(self, relation: str) -> int:
        """Return how far behind the watermark rows of a relation may be needed, without lateness.

        A row of an outer relation looks for partners again when it has waited for them.
        """
        length = self.inputs[relation].length
        has_waiting_partner = any(self.get_partner(outer) == relation for outer in self.outer_relations)
        return length + self.inputs[self.get_partner(relation)].length if has_waiting_partner else length


def normalize_join(live: LiveQuery, *, isolated: bool = False, residual_texts: frozenset[str] = frozenset()) -> NormalizedJoin:
    """Return a live query in normalized names; if `isolated`, in names that no other query has."""
    plan = live.plan
    assert isinstance(plan, SlidingJoinQuery)
    names = tuple(f"{name}@{live.id}" if isolated else name for name in name_relations(plan))
    renamed_columns = dict(_iter_renamed_columns(plan, names))
    conditions = tuple(substitute_columns(expression, renamed_columns) for expression in plan.conditions)
    output = tuple(substitute_columns(expression, renamed_columns) for expression in plan.output)
    predicate = substitute_columns(plan.predicate, renamed_columns)
    inputs = dict(zip(names, plan.inputs, strict=True))
    backfills = () if isolated else live.backfills
    return NormalizedJoin(
        live.id,
        live.name,
        live.bit,
        live.since,
        plan.streams,
        inputs,
        conditions,
        output,
        plan.schema,
        backfills,
        residual_texts,
        live.former_bits,
        tuple(names[index] for index in plan.outer_inputs),
        plan.emits_matches,
        predicate,
    )


def name_relations(plan: SlidingJoinQuery) -> tuple[str, ...]:
    """Return the relation name of each input."""
    names: list[str] = []
    for index, join_input in enumerate(plan.inputs):
        earlier = sum(other.stream == join_input.stream for other in plan.inputs[:index])
        names.append(f"{join_input.stream}#{earlier + 1}" if earlier else join_input.stream)
    return tuple(names)


def _iter_renamed_columns(plan: SlidingJoinQuery, names: tuple[str, ...]) -> Iterator[tuple[str, Expression]]:
    for expression in (*plan.conditions, plan.predicate, *plan.output):
        for part in walk_expression(expression):
            if isinstance(part, Column):
                index, name = split_joined_name(part.name)
                yield part.name, Column(qualify_column(names[index], name), part.type)


def split_equality(condition: Expression) -> tuple[Expression, Expression] | None:
    """Return the sides of an equality between two relations, ordered by relation; None for any other condition."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    first, second = sorted(condition.args, key=lambda side: sorted(find_relations(side)))
    if len(find_relations(first)) == len(find_relations(second)) == 1 and find_relations(first) != find_relations(second):
        return first, second
    return None


def to_predicate(condition: Expression) -> JoinPredicate | None:
    """Return a condition as a predicate of the join graph; None if it is over a single relation."""
    between = tuple(sorted(find_relations(condition)))
    if len(between) < 2:
        return None
    sides = split_equality(condition)
    attributes = () if sides is None else tuple(map(to_attribute, sides))
    return JoinPredicate(between, format_expression(condition), attributes, _is_range(condition))


def _is_range(condition: Expression) -> bool:
    """Return whether a condition compares a value of one relation with a value of another."""
    if not isinstance(condition, Call) or condition.function not in ("lt", "le", "gt", "ge"):
        return False
    first, second = map(find_relations, condition.args)
    return len(first) == len(second) == 1 and first != second


def to_attribute(side: Expression) -> Attribute:
    """Return one side of an equality as an attribute that can partition its relation."""
    (relation,) = find_relations(side)
    unqualified = {
        part.name: Column(part.name.partition(_SEPARATOR)[2], part.type)
        for part in walk_expression(side)
        if isinstance(part, Column)
    }
    return Attribute(relation, str(substitute_columns(side, unqualified)))


MAX_ROW_INCREASE = 4.0  # sharing may produce up to this many times the rows


def find_residual_predicates(queries: Iterable[NormalizedJoin], selectivities: Mapping[JoinPredicate, float]) -> frozenset[str]:
    """Return the texts of the conditions that are residual.

    For each pair of relations, the predicates common to all queries that join them remain in the join graph, if they contain an
    equality and pass at most MAX_ROW_INCREASE times the rows that the conditions of any of these queries pass.
    """
    pairs: dict[tuple[str, ...], set[frozenset[JoinPredicate]]] = defaultdict(set)
    for query in queries:
        predicates_by_pair: dict[tuple[str, ...], set[JoinPredicate]] = defaultdict(set)
        for predicate in query.predicates:
            predicates_by_pair[predicate.relations].add(predicate)
        for pair, predicates in predicates_by_pair.items():
            pairs[pair].add(frozenset(predicates))
    residual_texts: set[str] = set()
    for variants in pairs.values():
        common = frozenset.intersection(*variants)
        common_selectivity = _multiply_selectivities(common, selectivities)
        if any(predicate.sides for predicate in common) and all(
            common_selectivity <= MAX_ROW_INCREASE * _multiply_selectivities(variant, selectivities) for variant in variants
        ):
            residual_texts |= {predicate.text for variant in variants for predicate in variant - common}
    return frozenset(residual_texts)


def _multiply_selectivities(predicates: Iterable[JoinPredicate], selectivities: Mapping[JoinPredicate, float]) -> float:
    return math.prod(selectivities.get(predicate, 1.0) for predicate in predicates)
