"""What the optimizers of multi-way joins are told: relations and the predicates between them.

Structural equality is what sharing goes by: the same join of the same inputs in two queries is one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Attribute:
    """What an input relation can be partitioned by: a column, or an expression over its columns."""

    relation: str
    name: str

    def __str__(self) -> str:
        """Return it as it is written in queries."""
        return f"{self.relation}.{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class Predicate:
    """A condition between two inputs; `sides` are the attributes that an equality compares, none for another condition."""

    relations: tuple[str, str]
    text: str
    sides: tuple[Attribute, ...] = ()

    def __post_init__(self) -> None:
        """Check that it is between two, in order, and that an equality has a side of each."""
        if not self.relations[0] < self.relations[1]:
            raise ValueError("a predicate is between two different relations, named in order")
        if self.sides and tuple(side.relation for side in self.sides) != self.relations:
            raise ValueError("an equality has one attribute of each of its relations, in order")

    def __str__(self) -> str:
        """Return its text."""
        return self.text


def equal(one: Attribute, two: Attribute) -> Predicate:
    """Return the equality of two attributes."""
    first, second = sorted((one, two))
    return Predicate((first.relation, second.relation), f"{first} = {second}", (first, second))


def theta(one: str, two: str, text: str) -> Predicate:
    """Return a condition between two inputs that is not an equality."""
    first, second = sorted((one, two))
    return Predicate((first, second), text)


@dataclass(frozen=True, slots=True)
class Join:
    """A join of inputs: what a query asks for, or a part of it that may be kept; of one input, that input."""

    relations: frozenset[str]
    predicates: frozenset[Predicate] = frozenset()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that predicates are between inputs of the join; hash once."""
        if not self.relations or any(not self.relations.issuperset(one.relations) for one in self.predicates):
            raise ValueError("the predicates of a join are between its own inputs")
        object.__setattr__(self, "_hash", hash((self.relations, self.predicates)))

    def __hash__(self) -> int:
        """Return what was worked out once: joins are keys in every table of the optimizers."""
        return self._hash

    def __reduce__(self) -> tuple[type[Join], tuple[frozenset[str], frozenset[Predicate]]]:
        """Travel without the hash: it is another one in another process."""
        return Join, (self.relations, self.predicates)

    def __str__(self) -> str:
        """Return the names of the inputs, as stores are named."""
        return "⋈".join(sorted(self.relations))

    @property
    def is_input(self) -> bool:
        """Whether it is a single input."""
        return len(self.relations) == 1

    def within(self, relations: Iterable[str]) -> Join:
        """Return the part of this join that is over some of its inputs, with all predicates between those."""
        kept = frozenset(relations)
        return Join(kept, frozenset(one for one in self.predicates if kept.issuperset(one.relations)))

    def between(self, one: Iterable[str], two: Iterable[str]) -> Iterator[Predicate]:
        """Yield the predicates that connect inputs of one side with inputs of the other."""
        left, right = frozenset(one), frozenset(two)
        for predicate in self.predicates:
            first, second = predicate.relations
            if (first in left and second in right) or (first in right and second in left):
                yield predicate

    def is_connected(self) -> bool:
        """Tell whether predicates lead from every input to every other, so that no step is a cross product."""
        reached = {min(self.relations)}
        while True:
            more = {name for one in self.predicates if reached & set(one.relations) for name in one.relations} - reached
            if not more:
                return reached == self.relations
            reached |= more


def input_relation(name: str) -> Join:
    """Return a single input as a relation."""
    return Join(frozenset({name}))
