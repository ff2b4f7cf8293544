"""A live window join prepared for workers: its join path, and how its rows become results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from headrace.engine.joins.joined_rows import ChunkedColumn, JoinTable
from headrace.engine.joins.output_spec import FinishedQuery, OutputSpec
from headrace.engine.joins.row_references import list_reference_types
from headrace.model.time import MAX_TIME
from headrace.plan.window_join import (
    JoinNode,
    WindowJoinQuery,
    iter_inputs,
    iter_join_nodes,
    present_column,
    split_joined_name,
)
from headrace.planner.join.row_storage import find_output_columns
from headrace.planner.join.window_join_plan import (
    JoinPath,
    WindowJoinChain,
    WindowJoinLeaf,
    WindowJoinStep,
    build_chains,
    find_needed_columns,
    renumber_inputs,
)
from headrace.planner.shared_plan import LiveQuery


class Joiner:
    """Joins the windows of one live query along `path`: its first leaf and its steps.

    The inputs of `plan` are numbered by their positions on the path: queries with a common prefix have the same columns there.
    `residuals` are the residual predicates of the steps, `column_types` the joined columns. Queries share the steps of a common
    path prefix. `fetched_inputs` are those whose columns may have to be fetched after the last step.
    """

    def __init__(
        self,
        live: LiveQuery,
        chain: WindowJoinChain,
        tree: JoinNode,
        since: int,
        until: int,
        fetched_inputs: tuple[int, ...] = (),
        group_level: int = 0,
    ) -> None:
        """Join the windows of a live query that start in [since, until) by a chain; `fetched_inputs` are inputs of the query."""
        assert isinstance(live.plan, WindowJoinQuery)
        order = tuple(iter_inputs(tree))
        self.plan = plan = renumber_inputs(replace(live.plan, tree=tree), order)
        self.live, self.bit = live, live.bit
        self.ends, self.size = plan.ends, plan.longest_window
        self.since, self.until = max(since, live.since), until
        self.chain, self.path = chain, chain.path
        self.fetched_inputs = tuple(sorted(order.index(index) for index in fetched_inputs))
        self.residuals = tuple(node.residual for node in iter_join_nodes(plan.tree))
        self.column_types = {column.name: column.type for column in plan.joined_columns}
        self.column_types |= {present_column(index).name: pa.bool_() for index in range(len(plan.inputs))}
        window = live.plan.inputs[0].window
        base = (plan.output, plan.schema, plan.predicate, plan.grouping, plan.longest_span)
        output = OutputSpec(*base, group_level if plan.grouping else 0, window)
        self.finished = FinishedQuery(live.id, live.bit, output)

    def list_columns(self, path: JoinPath) -> frozenset[str]:
        """Return the joined columns needed after a path, of the inputs on it, and all references."""
        inputs = [leaf_of(node).input_index for node in path]
        names = frozenset(f"{index}.{name}" for index in inputs for name in (*find_needed_columns(self.plan, index), ""))
        return names | self._list_references(self.fetched_inputs)

    def _list_references(self, inputs: Iterable[int]) -> frozenset[str]:
        return frozenset(name for index in inputs for name in list_reference_types(index))

    def list_finish_columns(self, fetched_inputs: Iterable[int]) -> frozenset[str]:
        """Return the joined columns needed to finish rows that still have references to rows of `fetched_inputs`."""
        inputs = range(len(self.plan.inputs))
        names = frozenset(f"{index}.{name}" for index in inputs for name in (*find_output_columns(self.plan, index), ""))
        return names | self._list_references(fetched_inputs)

    def list_output_types(self, index: int) -> dict[str, pa.DataType]:
        """Return the types of the columns of the stream of an input that are needed to finish rows."""
        return {name: self.column_types[f"{index}.{name}"] for name in find_output_columns(self.plan, index)}

    def find_home(self, index: int) -> tuple[str, int]:
        """Return the stream and the slot of the home buffer that rows of an input are fetched from."""
        leaf = leaf_of(self.path[index])
        return leaf.stream, leaf.slot

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


def build_joiners(live: LiveQuery, fetched_inputs: tuple[int, ...] = ()) -> tuple[Joiner, ...]:
    """Return the joiners of a live query: one for each of its join order versions, each for its own range of windows."""
    if not isinstance(live.plan, WindowJoinQuery):
        return ()
    versions = build_chains(live.plan, live.order_versions)
    ends = [*(version.since for version, _, _ in versions[1:]), MAX_TIME]
    last_step_level = max(chain.extra_shuffles for *_, chain in versions)
    group_level = last_step_level + len(fetched_inputs) + 1 if fetched_inputs else 0
    return tuple(
        Joiner(live, chain, tree, version.since, until, fetched_inputs, group_level)
        for (version, tree, chain), until in zip(versions, ends, strict=True)
    )


def leaf_of(node: WindowJoinLeaf | WindowJoinStep) -> WindowJoinLeaf:
    """Return the leaf of a node of a path."""
    return node if isinstance(node, WindowJoinLeaf) else node.leaf
