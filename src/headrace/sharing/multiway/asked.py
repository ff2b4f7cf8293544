"""Live multi-way joins in names that all of them share, so that equal parts of different queries are equal values.

A relation is a stream, or `stream#2` for the second time a query reads it. Column `c` of relation r goes by one name
whatever query looks at it; so do conditions, and with them the joins that the optimizers know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.model.expression import Call, Column, Expression, columns, substitute, walk
from headrace.model.schema import Schema
from headrace.plan.join import owner
from headrace.plan.multiway import MultiwayQuery, RangeInput
from headrace.sharing.multiway.loan import Loan
from headrace.sharing.multiway.relations import Attribute, Join, Predicate
from headrace.sharing.shared_plan import LiveQuery

_SEPARATOR = "\x1f"  # no name can have it


def column_of(relation: str, name: str) -> str:
    """Return the name that column `name` of a relation has in joined rows."""
    return f"{relation}{_SEPARATOR}{name}"


def time_of(relation: str) -> str:
    """Return the name of the column that holds the event times of a relation's rows."""
    return column_of(relation, "")


def relation_of(column: str) -> str:
    """Return the relation of a column of joined rows."""
    return column.partition(_SEPARATOR)[0]


def shown(text: object) -> str:
    """Return an expression over joined columns as people write it."""
    return str(text).replace(_SEPARATOR, ".")


def relations_of(condition: Expression) -> frozenset[str]:
    """Return the relations that an expression over joined columns looks at."""
    return frozenset(map(relation_of, columns(condition)))


@dataclass(frozen=True, slots=True)
class Asked:
    """A live query: its inputs by relation, its conditions and outputs over joined columns.

    `join` is what the optimizers see of it: relations, and conditions between two of them. Those whose text is `loose` are left
    out where an equality stays: they are looked at for rows that were joined by the others.
    """

    id: int
    name: str
    bit: int
    since: int
    streams: tuple[str, ...]
    inputs: Mapping[str, RangeInput]
    conditions: tuple[Expression, ...]
    output: tuple[Expression, ...]
    schema: Schema
    lent: tuple[Loan, ...] = ()
    loose: frozenset[str] = frozenset()
    join: Join = field(init=False, repr=False, compare=False)
    columns: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out what the optimizers see of it, and the joined columns that are looked at after rows were selected."""
        object.__setattr__(self, "join", Join(frozenset(self.inputs), frozenset(self._binding())))
        every = (*self.conditions, *self.output)
        object.__setattr__(self, "columns", frozenset(name for expression in every for name in columns(expression)))

    @property
    def predicates(self) -> frozenset[Predicate]:
        """All conditions between two relations."""
        found = map(predicate_of, self.conditions)
        return frozenset(one for one in found if one is not None)

    def _binding(self) -> Iterator[Predicate]:
        every = self.predicates
        firm = {one.relations for one in every if one.sides and one.text not in self.loose}
        yield from (one for one in every if one.text not in self.loose or one.relations not in firm)

    @property
    def lateness(self) -> int:
        """How far behind the watermark a row of any input may be."""
        return max(each.lateness for each in self.inputs.values())

    @property
    def tail(self) -> tuple[object, ...]:
        """What is done with joined rows: queries with equal tails are finished together."""
        return self.output, self.schema


def asked(live: LiveQuery, *, apart: bool = False, loose: frozenset[str] = frozenset()) -> Asked:
    """Return a live query in shared names; `apart`, in names that nobody shares with it."""
    plan = live.plan
    assert isinstance(plan, MultiwayQuery)
    names = tuple(f"{name}@{live.id}" if apart else name for name in relation_names(plan))
    renamed = dict(_renamed(plan, names))
    conditions = tuple(substitute(one, renamed) for one in plan.conditions)
    output = tuple(substitute(one, renamed) for one in plan.output)
    inputs = dict(zip(names, plan.inputs, strict=True))
    lent = () if apart else live.lent
    return Asked(live.id, live.name, live.bit, live.since, plan.streams, inputs, conditions, output, plan.schema, lent, loose)


def relation_names(plan: MultiwayQuery) -> tuple[str, ...]:
    """Return the relation of each input."""
    found: list[str] = []
    for index, one in enumerate(plan.inputs):
        before = sum(other.stream == one.stream for other in plan.inputs[:index])
        found.append(f"{one.stream}#{before + 1}" if before else one.stream)
    return tuple(found)


def _renamed(plan: MultiwayQuery, names: tuple[str, ...]) -> Iterator[tuple[str, Expression]]:
    for expression in (*plan.conditions, *plan.output):
        for part in walk(expression):
            if isinstance(part, Column):
                index, name = owner(part.name)
                yield part.name, Column(column_of(names[index], name), part.type)


def sides_of(condition: Expression) -> tuple[Expression, Expression] | None:
    """Return the sides of an equality between two relations, that of the lesser one first; None of any other condition."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    one, two = sorted(condition.args, key=lambda side: sorted(relations_of(side)))
    if len(relations_of(one)) == len(relations_of(two)) == 1 and relations_of(one) != relations_of(two):
        return one, two
    return None


def predicate_of(condition: Expression) -> Predicate | None:
    """Return a condition as the optimizers know it; None if it is not between exactly two relations."""
    between = sorted(relations_of(condition))
    if len(between) != 2:
        return None
    sides = sides_of(condition)
    attributes = () if sides is None else tuple(map(attribute_of, sides))
    return Predicate((between[0], between[1]), shown(condition), attributes)


def attribute_of(side: Expression) -> Attribute:
    """Return one side of an equality as what a relation can be partitioned by."""
    (relation,) = relations_of(side)
    bare = {part.name: Column(part.name.partition(_SEPARATOR)[2], part.type) for part in walk(side) if isinstance(part, Column)}
    return Attribute(relation, str(substitute(side, bare)))
