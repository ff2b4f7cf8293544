"""A live join, made ready for workers: how it is worked off, and what is done with its rows."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.execution.joined_rows import Pieces, Table
from headrace.plan.join import JoinNode, JoinQuery, nodes_of, owner, present_column
from headrace.plan.logical import AggregateBranch, AggregateQuery
from headrace.sharing.aggregation import Component, components
from headrace.sharing.joining import Chain, Leaf, Step, chains, needed_columns
from headrace.sharing.shared_plan import LiveQuery
from headrace.sharing.slicing import FOREVER

Path = tuple[Leaf | Step, ...]


class Joiner:
    """`path` is its first leaf and its steps; `rests` are the further conditions of the steps; `tail` what is done with rows.

    Queries share the steps of equal beginnings of paths; those of equal tails are finished together.
    """

    def __init__(self, live: LiveQuery, chain: Chain, tree: JoinNode, since: int, until: int) -> None:
        """Work off windows of a live join that start in [since, until) by a chain."""
        assert isinstance(live.plan, JoinQuery)
        self.live, self.plan, self.bit = live, live.plan, live.bit
        self.ends, self.size = live.plan.ends, live.plan.size
        self.since, self.until = max(since, live.since), until
        self.chain = chain
        self.rests = tuple(node.rest for node in nodes_of(tree))
        self.path: Path = (self.chain.first, *self.chain.steps)
        self._types = {column.name: column.type for column in live.plan.joined_columns}
        self._types |= {present_column(index).name: pa.bool_() for index in range(len(live.plan.inputs))}
        self.tail = (live.plan.predicate, live.plan.output, live.plan.schema, live.plan.grouping, live.plan.span)

    @property
    def aggregate(self) -> AggregateQuery:
        """The aggregation over joined rows, as one over a stream of them."""
        grouping = self.plan.grouping
        assert grouping is not None
        branch = AggregateBranch("", grouping.keys, grouping.aggregates)
        return AggregateQuery(self.plan.inputs[0].window, (branch,), self.plan.output, self.plan.schema, grouping.having)

    @property
    def needs(self) -> tuple[Component, ...]:
        """The components of an aggregation over joined rows."""
        assert self.plan.grouping is not None
        return components(self.plan.grouping.aggregates)

    def columns(self, path: Path) -> frozenset[str]:
        """Return the joined columns that are looked at after a path, of the inputs on it."""
        leaves = [leaf_of(one) for one in path]
        return frozenset(f"{leaf.input}.{name}" for leaf in leaves for name in (*needed_columns(self.plan, leaf.input), ""))

    def last_end(self, before: int, after: int, seen: int) -> int | None:
        """Return the last end of windows that close, in (before, after], and can hold a row; None if none does."""
        limit = min(after, seen + self.size)
        found = (limit - self.ends.offset) // self.ends.step * self.ends.step + self.ends.offset
        return found if found > before else None

    def absent(self, inputs: Iterable[int]) -> Table:
        """Return a table without rows that has the columns of these inputs."""
        return Table({name: Pieces([pa.array([], kind)]) for name, kind in self._types.items() if owner(name)[0] in inputs}, 0)


def joiners_of(live: LiveQuery) -> tuple[Joiner, ...]:
    """Return how a live query is joined: one joiner for each of its arrangements, each for windows of its own."""
    if not isinstance(live.plan, JoinQuery):
        return ()
    found = chains(live.plan, live.arrangements)
    ends = [*(arrangement.since for arrangement, _, _ in found[1:]), FOREVER]
    return tuple(
        Joiner(live, chain, tree, arrangement.since, until) for (arrangement, tree, chain), until in zip(found, ends, strict=True)
    )


def leaf_of(one: Leaf | Step) -> Leaf:
    """Return the leaf of a part of a path."""
    return one if isinstance(one, Leaf) else one.leaf
