"""Versions of the join order of a window join: the input order and the query group that the optimizer chooses, and may change.

A version applies to windows from an event time on. After a change, windows that started earlier are still joined by the old
version from buffers partitioned by the old keys; rows are buffered by old and new keys until the last of those windows closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from headrace.model.expression import TRUE, Call, Column, Expression, column_names, combine_conjuncts, split_conjuncts
from headrace.plan.join import (
    JoinEquality,
    JoinKind,
    JoinNode,
    JoinTree,
    WindowJoinQuery,
    iter_inputs,
    iter_join_nodes,
    joined_column,
    split_joined_name,
)
from headrace.sharing.slicing import MIN_TIME


@dataclass(frozen=True, slots=True)
class JoinOrderVersion:
    """An order of inputs and the group of queries that share it, valid for windows that start at `since` or later."""

    order: tuple[int, ...]
    group: int = 0
    since: int = MIN_TIME


def is_reorderable(plan: WindowJoinQuery) -> bool:
    """Return whether the inputs may be reordered: all joins must be inner joins."""
    return all(node.kind is JoinKind.INNER for node in iter_join_nodes(plan.tree))


def get_written_order(plan: WindowJoinQuery) -> tuple[int, ...]:
    """Return the order of inputs in the query text."""
    return tuple(iter_inputs(plan.tree))


def canonicalize_join(plan: WindowJoinQuery) -> WindowJoinQuery:
    """Return an inner join with its inputs numbered by stream name, so that equal joins written in different orders are equal."""
    if not is_reorderable(plan):
        return plan
    order = sorted(range(len(plan.inputs)), key=lambda i: (plan.inputs[i].stream, i))
    if order == list(range(len(order))):
        return plan
    number = {old: new for new, old in enumerate(order)}

    def renumber(expression: Expression) -> Expression:
        if isinstance(expression, Column):
            if not expression.name[:1].isdigit():
                return expression
            index, name = split_joined_name(expression.name)
            return joined_column(number[index], name, expression.type)
        if isinstance(expression, Call):
            return Call(expression.function, tuple(map(renumber, expression.args)), expression.type)
        return expression

    def renumber_tree(node: JoinTree) -> JoinTree:
        if isinstance(node, int):
            return number[node]
        equalities = tuple(JoinEquality(renumber(e.left), renumber(e.right)) for e in node.equalities)
        return JoinNode(node.kind, renumber_tree(node.left), renumber_tree(node.right), equalities, renumber(node.residual))

    grouping = plan.grouping
    if grouping is not None:
        calls = tuple(replace(call, args=tuple(map(renumber, call.args))) for call in grouping.aggregates)
        grouping = replace(grouping, keys=tuple(map(renumber, grouping.keys)), aggregates=calls)
    root = renumber_tree(plan.tree)
    assert isinstance(root, JoinNode)
    output = plan.output if grouping is not None else tuple(map(renumber, plan.output))
    return WindowJoinQuery(tuple(plan.inputs[i] for i in order), root, output, plan.schema, renumber(plan.predicate), grouping)


def build_join_tree(plan: WindowJoinQuery, order: Sequence[int]) -> JoinNode:
    """Return the left-deep tree that joins the inputs in an order and applies each condition as early as possible."""
    if tuple(order) == get_written_order(plan):
        return plan.tree
    pending = list(iter_conditions(plan))
    tree: JoinTree = order[0]
    joined = frozenset({order[0]})
    for index in order[1:]:
        reached = joined | {index}
        due = [condition for condition in pending if find_inputs(condition) <= reached]
        pending = [condition for condition in pending if not find_inputs(condition) <= reached]
        candidates = [to_equality(condition, joined, index) for condition in due]
        equalities = tuple(candidate for candidate in candidates if candidate is not None)
        rest = combine_conjuncts([condition for condition, candidate in zip(due, candidates, strict=True) if candidate is None])
        tree, joined = JoinNode(JoinKind.INNER, tree, index, equalities, rest), reached
    assert isinstance(tree, JoinNode)
    return tree


def count_cross_products(conditions: Sequence[Expression], order: Sequence[int]) -> int:
    """Return the number of cross products: steps of an order without an equality, whose rows all meet in one partition."""
    count, joined = 0, frozenset({order[0]})
    for index in order[1:]:
        count += all(to_equality(condition, joined, index) is None for condition in conditions)
        joined |= {index}
    return count


def iter_conditions(plan: WindowJoinQuery) -> Iterable[Expression]:
    """Yield all conditions between inputs, node by node, the equalities of a node first."""
    for node in iter_join_nodes(plan.tree):
        for pair in node.equalities:
            yield Call("eq", tuple(sorted((pair.left, pair.right), key=str)), TRUE.type)
        yield from (part for part in split_conjuncts(node.residual) if part != TRUE)


@lru_cache(maxsize=1 << 14)
def find_inputs(condition: Expression) -> frozenset[int]:
    """Return the inputs that a condition refers to."""
    return frozenset(split_joined_name(name)[0] for name in column_names(condition))


@lru_cache(maxsize=1 << 14)
def to_equality(condition: Expression, joined: frozenset[int], index: int) -> JoinEquality | None:
    """Return a condition as an equality between the joined inputs and one more; None for any other condition."""
    if isinstance(condition, Call) and condition.function == "eq":
        first, second = condition.args
        if find_inputs(second) == {index} and find_inputs(first) and find_inputs(first) <= joined:
            return JoinEquality(first, second)
        if find_inputs(first) == {index} and find_inputs(second) and find_inputs(second) <= joined:
            return JoinEquality(second, first)
    return None
