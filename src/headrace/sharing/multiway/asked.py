"""Sliding joins in normalized names, so that equal parts of different queries are equal values.

A relation is a stream, or `stream#2` for the second input of a query over the same stream. Column `c` of relation r has one name
in all queries; so have conditions, and therefore the join graphs that the optimizers compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.model.expression import Call, Column, Expression, column_names, substitute_columns, walk_expression
from headrace.model.schema import Schema
from headrace.plan.join import split_joined_name
from headrace.plan.multiway import SlidingInput, SlidingJoinQuery
from headrace.sharing.multiway.loan import Loan
from headrace.sharing.multiway.relations import Attribute, Join, Predicate
from headrace.sharing.shared_plan import LiveQuery

_SEPARATOR = "\x1f"  # cannot occur in names


def column_of(relation: str, name: str) -> str:
    """Return the name of column `name` of a relation in joined rows."""
    return f"{relation}{_SEPARATOR}{name}"


def time_of(relation: str) -> str:
    """Return the name of the column that holds the event times of the rows of a relation."""
    return column_of(relation, "")


def relation_of(column: str) -> str:
    """Return the relation of a column of joined rows."""
    return column.partition(_SEPARATOR)[0]


def shown(text: object) -> str:
    """Return an expression over joined columns as users write it."""
    return str(text).replace(_SEPARATOR, ".")


def relations_of(condition: Expression) -> frozenset[str]:
    """Return the relations that an expression over joined columns refers to."""
    return frozenset(map(relation_of, column_names(condition)))


@dataclass(frozen=True, slots=True)
class Asked:
    """A live sliding join: its inputs by relation, its conditions and outputs over joined columns.

    `join` is the view of the optimizers, a join graph: relations, and conditions between two of them. It omits residual
    predicates, those whose text is in `residual_texts`, where an equality remains: these are evaluated on rows that were joined
    by the other predicates.
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
    lent: tuple[Loan, ...] = ()
    loose: frozenset[str] = frozenset()
    join: Join = field(init=False, repr=False, compare=False)
    columns: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the join graph, and the joined columns that are read after the selection."""
        object.__setattr__(self, "join", Join(frozenset(self.inputs), frozenset(self._binding())))
        expressions = (*self.conditions, *self.output)
        object.__setattr__(self, "columns", frozenset(name for expression in expressions for name in column_names(expression)))

    @property
    def predicates(self) -> frozenset[Predicate]:
        """All conditions between two relations."""
        predicates = map(predicate_of, self.conditions)
        return frozenset(predicate for predicate in predicates if predicate is not None)

    def _binding(self) -> Iterator[Predicate]:
        """Yield the predicates of the join graph: all but the residual ones, unless these are all that connect two relations."""
        predicates = self.predicates
        joined_by_equality = {
            predicate.relations for predicate in predicates if predicate.sides and predicate.text not in self.loose
        }
        yield from (
            predicate
            for predicate in predicates
            if predicate.text not in self.loose or predicate.relations not in joined_by_equality
        )

    @property
    def lateness(self) -> int:
        """The allowed lateness: the maximum over all inputs."""
        return max(join_input.lateness for join_input in self.inputs.values())

    @property
    def tail(self) -> tuple[object, ...]:
        """The output and its schema: queries with equal ones share the projection of joined rows."""
        return self.output, self.schema


def asked(live: LiveQuery, *, apart: bool = False, loose: frozenset[str] = frozenset()) -> Asked:
    """Return a live query in normalized names; if `isolated`, in names that no other query has."""
    plan = live.plan
    assert isinstance(plan, SlidingJoinQuery)
    names = tuple(f"{name}@{live.id}" if apart else name for name in relation_names(plan))
    renamed_columns = dict(_renamed(plan, names))
    conditions = tuple(substitute_columns(expression, renamed_columns) for expression in plan.conditions)
    output = tuple(substitute_columns(expression, renamed_columns) for expression in plan.output)
    inputs = dict(zip(names, plan.inputs, strict=True))
    backfills = () if apart else live.lent
    return Asked(
        live.id, live.name, live.bit, live.since, plan.streams, inputs, conditions, output, plan.schema, backfills, loose
    )


def relation_names(plan: SlidingJoinQuery) -> tuple[str, ...]:
    """Return the relation name of each input."""
    names: list[str] = []
    for index, join_input in enumerate(plan.inputs):
        earlier = sum(other.stream == join_input.stream for other in plan.inputs[:index])
        names.append(f"{join_input.stream}#{earlier + 1}" if earlier else join_input.stream)
    return tuple(names)


def _renamed(plan: SlidingJoinQuery, names: tuple[str, ...]) -> Iterator[tuple[str, Expression]]:
    for expression in (*plan.conditions, *plan.output):
        for part in walk_expression(expression):
            if isinstance(part, Column):
                index, name = split_joined_name(part.name)
                yield part.name, Column(column_of(names[index], name), part.type)


def sides_of(condition: Expression) -> tuple[Expression, Expression] | None:
    """Return the sides of an equality between two relations, ordered by relation; None for any other condition."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    first, second = sorted(condition.args, key=lambda side: sorted(relations_of(side)))
    if len(relations_of(first)) == len(relations_of(second)) == 1 and relations_of(first) != relations_of(second):
        return first, second
    return None


def predicate_of(condition: Expression) -> Predicate | None:
    """Return a condition as a predicate of the join graph; None if it is not between exactly two relations."""
    between = sorted(relations_of(condition))
    if len(between) != 2:
        return None
    sides = sides_of(condition)
    attributes = () if sides is None else tuple(map(attribute_of, sides))
    return Predicate((between[0], between[1]), shown(condition), attributes)


def attribute_of(side: Expression) -> Attribute:
    """Return one side of an equality as an attribute that can partition its relation."""
    (relation,) = relations_of(side)
    unqualified = {
        part.name: Column(part.name.partition(_SEPARATOR)[2], part.type)
        for part in walk_expression(side)
        if isinstance(part, Column)
    }
    return Attribute(relation, str(substitute_columns(side, unqualified)))
