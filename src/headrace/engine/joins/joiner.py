"""A live window join prepared for workers: its join path, and how its rows become results."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.engine.joins.joined_rows import ChunkedColumn, JoinTable
from headrace.engine.joins.output_spec import FinishedQuery, OutputSpec
from headrace.model.time import MAX_TIME
from headrace.plan.window_join import JoinNode, WindowJoinQuery, iter_join_nodes, present_column, split_joined_name
from headrace.planner.join.window_join_plan import (
    WindowJoinChain,
    WindowJoinLeaf,
    WindowJoinStep,
    build_chains,
    find_needed_columns,
)
from headrace.planner.shared_plan import LiveQuery

JoinPath = tuple[WindowJoinLeaf | WindowJoinStep, ...]


class Joiner:
    """Joins the windows of one live query along `path`: its first leaf and its steps.

    `residuals` are the residual predicates of the steps, `column_types` the joined columns. Queries share the steps of a common
    path prefix.
    """

    def __init__(self, live: LiveQuery, chain: WindowJoinChain, tree: JoinNode, since: int, until: int) -> None:
        """Join the windows of a live query that start in [since, until) by a chain."""
        assert isinstance(live.plan, WindowJoinQuery)
        self.live, self.plan, self.bit = live, live.plan, live.bit
        self.ends, self.size = live.plan.ends, live.plan.longest_window
        self.since, self.until = max(since, live.since), until
        self.chain = chain
        self.residuals = tuple(node.residual for node in iter_join_nodes(tree))
        self.path: JoinPath = (self.chain.first_leaf, *self.chain.steps)
        self.column_types = {column.name: column.type for column in live.plan.joined_columns}
        self.column_types |= {present_column(index).name: pa.bool_() for index in range(len(live.plan.inputs))}
        plan = live.plan
        output = OutputSpec(plan.output, plan.schema, plan.predicate, plan.grouping, plan.longest_span, plan.inputs[0].window)
        self.finished = FinishedQuery(live.id, live.bit, output)

    def list_columns(self, path: JoinPath) -> frozenset[str]:
        """Return the joined columns needed after a path, of the inputs on it."""
        leaves = [leaf_of(node) for node in path]
        return frozenset(
            f"{leaf.input_index}.{name}" for leaf in leaves for name in (*find_needed_columns(self.plan, leaf.input_index), "")
        )

    def find_last_end(self, before: int, after: int, newest: int) -> int | None:
        """Return the last end, in (before, after], of windows that can contain a row; None if there is none."""
        limit = min(after, newest + self.size)
        last = (limit - self.ends.offset) // self.ends.step * self.ends.step + self.ends.offset
        return last if last > before else None

    def count_overlaps(self, leaves: Iterable[WindowJoinLeaf]) -> float:
        """Return the number of windows that a pair of rows of these leaves is in at most."""
        return min(self.plan.inputs[leaf.input_index].window.size for leaf in leaves) / self.ends.step

    def make_empty_table(self, inputs: Iterable[int]) -> JoinTable:
        """Return an empty table with the columns of these inputs."""
        types = ((name, kind) for name, kind in self.column_types.items() if split_joined_name(name)[0] in inputs)
        return JoinTable({name: ChunkedColumn([pa.array([], kind)]) for name, kind in types}, 0)


def build_joiners(live: LiveQuery) -> tuple[Joiner, ...]:
    """Return the joiners of a live query: one for each of its join order versions, each for its own range of windows."""
    if not isinstance(live.plan, WindowJoinQuery):
        return ()
    versions = build_chains(live.plan, live.order_versions)
    ends = [*(version.since for version, _, _ in versions[1:]), MAX_TIME]
    return tuple(
        Joiner(live, chain, tree, version.since, until) for (version, tree, chain), until in zip(versions, ends, strict=True)
    )


def leaf_of(node: WindowJoinLeaf | WindowJoinStep) -> WindowJoinLeaf:
    """Return the leaf of a node of a path."""
    return node if isinstance(node, WindowJoinLeaf) else node.leaf
