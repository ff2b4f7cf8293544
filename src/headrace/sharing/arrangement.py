"""In which order, and together with whom, a join is worked off: what the optimizer decides and may change while it runs.

An arrangement holds for windows from an event time on. When it changes, windows that began before are still joined as they
were, from buckets by the old keys; rows are kept by old and new keys until the last of those windows has closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from headrace.model.expression import TRUE, Call, Column, Expression, columns, conjunction, conjuncts
from headrace.plan.join import Equality, JoinKind, JoinNode, JoinQuery, JoinTree, inputs_of, joined_column, nodes_of, owner
from headrace.sharing.slicing import NEVER


@dataclass(frozen=True, slots=True)
class Arrangement:
    """From windows that start at `since` on: the order of inputs, and the group of queries it is joined together with."""

    order: tuple[int, ...]
    group: int = 0
    since: int = NEVER


def is_free(plan: JoinQuery) -> bool:
    """Tell whether the inputs may be joined in another order: with inner joins only they may."""
    return all(node.kind is JoinKind.INNER for node in nodes_of(plan.tree))


def written(plan: JoinQuery) -> tuple[int, ...]:
    """Return the order of the plan itself."""
    return tuple(inputs_of(plan.tree))


def canonical(plan: JoinQuery) -> JoinQuery:
    """Return a join with its inputs numbered by stream: how they were ordered in the text makes no difference."""
    if not is_free(plan):
        return plan
    order = sorted(range(len(plan.inputs)), key=lambda i: (plan.inputs[i].stream, i))
    if order == list(range(len(order))):
        return plan
    number = {old: new for new, old in enumerate(order)}

    def moved(expression: Expression) -> Expression:
        if isinstance(expression, Column):
            if not expression.name[:1].isdigit():
                return expression
            index, name = owner(expression.name)
            return joined_column(number[index], name, expression.type)
        if isinstance(expression, Call):
            return Call(expression.function, tuple(map(moved, expression.args)), expression.type)
        return expression

    def tree(node: JoinTree) -> JoinTree:
        if isinstance(node, int):
            return number[node]
        equalities = tuple(Equality(moved(e.left), moved(e.right)) for e in node.equalities)
        return JoinNode(node.kind, tree(node.left), tree(node.right), equalities, moved(node.rest))

    grouping = plan.grouping
    if grouping is not None:
        calls = tuple(replace(call, args=tuple(map(moved, call.args))) for call in grouping.aggregates)
        grouping = replace(grouping, keys=tuple(map(moved, grouping.keys)), aggregates=calls)
    root = tree(plan.tree)
    assert isinstance(root, JoinNode)
    output = plan.output if grouping is not None else tuple(map(moved, plan.output))
    return JoinQuery(tuple(plan.inputs[i] for i in order), root, output, plan.schema, moved(plan.predicate), grouping)


def arranged(plan: JoinQuery, order: Sequence[int]) -> JoinNode:
    """Return the tree that joins inputs in an order, conditions as early as can be."""
    if tuple(order) == written(plan):
        return plan.tree
    waiting = list(conditions(plan))
    tree: JoinTree = order[0]
    inside = frozenset({order[0]})
    for index in order[1:]:
        reached = inside | {index}
        due = [condition for condition in waiting if inputs(condition) <= reached]
        waiting = [condition for condition in waiting if not inputs(condition) <= reached]
        split = [equality(condition, inside, index) for condition in due]
        found = tuple(one for one in split if one is not None)
        rest = conjunction([condition for condition, one in zip(due, split, strict=True) if one is None])
        tree, inside = JoinNode(JoinKind.INNER, tree, index, found, rest), reached
    assert isinstance(tree, JoinNode)
    return tree


def products(conditions: Sequence[Expression], order: Sequence[int]) -> int:
    """Return how many steps of an order have no equality: their rows meet in one place, and many with many."""
    found, inside = 0, frozenset({order[0]})
    for index in order[1:]:
        found += all(equality(condition, inside, index) is None for condition in conditions)
        inside |= {index}
    return found


def conditions(plan: JoinQuery) -> Iterable[Expression]:
    """Yield all conditions between inputs, equalities as such first, node by node."""
    for node in nodes_of(plan.tree):
        for one in node.equalities:
            yield Call("eq", tuple(sorted((one.left, one.right), key=str)), TRUE.type)
        yield from (part for part in conjuncts(node.rest) if part != TRUE)


@lru_cache(maxsize=1 << 14)
def inputs(condition: Expression) -> frozenset[int]:
    """Return the inputs that a condition looks at."""
    return frozenset(owner(name)[0] for name in columns(condition))


@lru_cache(maxsize=1 << 14)
def equality(condition: Expression, inside: frozenset[int], index: int) -> Equality | None:
    """Return a condition as an equality between the inputs so far and one more, if it is one."""
    if isinstance(condition, Call) and condition.function == "eq":
        one, two = condition.args
        if inputs(two) == {index} and inputs(one) and inputs(one) <= inside:
            return Equality(one, two)
        if inputs(one) == {index} and inputs(two) and inputs(two) <= inside:
            return Equality(two, one)
    return None
