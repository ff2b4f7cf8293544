"""Join graphs: the relations and predicates that the optimizers of sliding joins know.

Sharing is decided by structural equality: the same join of the same inputs in two queries is one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from headrace.model.record import record


@record("attribute")
@dataclass(frozen=True, slots=True, order=True)
class Attribute:
    """A partition attribute of an input relation: a column, or an expression over its columns."""

    relation: str
    name: str

    def __str__(self) -> str:
        """Return the attribute as written in queries."""
        return f"{self.relation}.{self.name}"


@record("join-predicate")
@dataclass(frozen=True, slots=True, order=True)
class JoinPredicate:
    """A condition over two or more inputs; `sides` are the attributes that an equality compares, empty for other conditions.

    `is_range` says that it compares a value of one input with one of another, so that an index finds the partners of a row.
    """

    relations: tuple[str, ...]
    text: str
    sides: tuple[Attribute, ...] = ()
    is_range: bool = field(default=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that the relations differ, in order, and that an equality has an attribute of each; compute the hash."""
        if len(self.relations) < 2 or any(not first < second for first, second in pairwise(self.relations)):
            raise ValueError("a predicate needs two or more different relations in alphabetical order")
        if self.sides and tuple(side.relation for side in self.sides) != self.relations:
            raise ValueError("an equality needs one attribute of each of its relations, in the same order")
        object.__setattr__(self, "_hash", hash((self.relations, self.text, self.sides)))

    def __hash__(self) -> int:
        """Return the precomputed hash: selectivities are looked up by predicate."""
        return self._hash

    def __reduce__(self) -> tuple[type[JoinPredicate], tuple[tuple[str, ...], str, tuple[Attribute, ...], bool]]:
        """Pickle without the hash: str hashes differ between processes."""
        return JoinPredicate, (self.relations, self.text, self.sides, self.is_range)

    def __str__(self) -> str:
        """Return its text."""
        return self.text


@record("join-graph")
@dataclass(frozen=True, slots=True)
class JoinGraph:
    """A join of inputs: a complete query, or a part that may be materialized; with one input, that input itself."""

    relations: frozenset[str]
    predicates: frozenset[JoinPredicate] = frozenset()
    _hash: int = field(init=False, repr=False, compare=False)
    _name: str = field(init=False, repr=False, compare=False)
    _subgraphs: dict[frozenset[str], JoinGraph] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Check that predicates connect inputs of the join; compute the hash and the name."""
        if not self.relations or any(not self.relations.issuperset(predicate.relations) for predicate in self.predicates):
            raise ValueError("a join needs inputs, and its predicates must be between them")
        object.__setattr__(self, "_hash", hash((self.relations, self.predicates)))
        object.__setattr__(self, "_name", "⋈".join(sorted(self.relations)))

    def __hash__(self) -> int:
        """Return the precomputed hash: joins are keys in every table of the optimizers."""
        return self._hash

    def __reduce__(self) -> tuple[type[JoinGraph], tuple[frozenset[str], frozenset[JoinPredicate]]]:
        """Pickle without the hash: str hashes differ between processes."""
        return JoinGraph, (self.relations, self.predicates)

    def __str__(self) -> str:
        """Return the names of the inputs, as stores are named."""
        return self._name

    @property
    def is_input(self) -> bool:
        """Whether it is a single input."""
        return len(self.relations) == 1

    def subgraph(self, relations: Iterable[str]) -> JoinGraph:
        """Return the subjoin over some inputs, with all predicates between those."""
        names = frozenset(relations)
        part = self._subgraphs.get(names)
        if part is None:
            predicates = frozenset(predicate for predicate in self.predicates if names.issuperset(predicate.relations))
            part = self._subgraphs[names] = JoinGraph(names, predicates)  # optimizers ask for the same few subjoins again
        return part

    def predicates_between(self, first_inputs: Iterable[str], second_inputs: Iterable[str]) -> Iterator[JoinPredicate]:
        """Yield the predicates over inputs of both sides, and of no others."""
        left, right = frozenset(first_inputs), frozenset(second_inputs)
        for predicate in self.predicates:
            if len(predicate.relations) == 2:
                first, second = predicate.relations
                if (first in left and second in right) or (first in right and second in left):
                    yield predicate
            elif (left | right).issuperset(predicate.relations) and not (
                left.isdisjoint(predicate.relations) or right.isdisjoint(predicate.relations)
            ):
                yield predicate

    def list_components(self) -> list[frozenset[str]]:
        """Return the sets of inputs that predicates connect, by name; more than one make a cross product."""
        components: list[frozenset[str]] = []
        remaining = set(self.relations)
        while remaining:
            reached = {min(remaining)}
            while (
                more := {
                    name for predicate in self.predicates if reached & set(predicate.relations) for name in predicate.relations
                }
                - reached
            ):
                reached |= more
            components.append(frozenset(reached))
            remaining -= reached
        return components

    def is_connected(self) -> bool:
        """Return whether predicates connect all inputs."""
        return len(self.list_components()) == 1


def input_relation(name: str) -> JoinGraph:
    """Return a single input as a relation."""
    return JoinGraph(frozenset({name}))
