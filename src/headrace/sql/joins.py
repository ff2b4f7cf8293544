"""FROM clauses that join streams in windows, to a `JoinQuery`.

Conditions are pulled apart at AND and each is put as deep as its meaning allows: what looks at one stream only selects its
rows, what equates two sides is what they are joined by, the rest is looked at for rows that are joined so far. Inner
joins are put into an order in which every stream has an equality with those before it, as far as there are equalities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Column, Expression, columns, conjunction, conjuncts, substitute
from headrace.model.schema import Field, Schema
from headrace.model.window import Sliding, common_ends, duration
from headrace.plan.join import (
    MAX_INPUTS,
    Equality,
    JoinGrouping,
    JoinInput,
    JoinKind,
    JoinNode,
    JoinQuery,
    JoinTree,
    lowered,
    owner,
)
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery
from headrace.sql.aggregate_joins import is_aggregate, merged_aggregations
from headrace.sql.aggregation import bind_groups
from headrace.sql.expressions import bind_condition
from headrace.sql.flatten import Context, aggregates, bind_items, bind_source, bind_where, check_clauses, source_of
from headrace.sql.joined import Joined, Step
from headrace.sql.operators import compare
from headrace.sql.relation import Relation
from headrace.sql.scope import END, START, Scope

_CLAUSES = frozenset({"expressions", "from_", "where", "group", "having", "with_", "joins"})
_EQUAL, _RELATED, _UNRELATED = 2, 1, 0
_KINDS = {
    ("", ""): JoinKind.INNER,
    ("", "INNER"): JoinKind.INNER,
    ("", "CROSS"): JoinKind.INNER,
    ("LEFT", ""): JoinKind.LEFT,
    ("RIGHT", ""): JoinKind.RIGHT,
    ("FULL", ""): JoinKind.FULL,
    ("", "SEMI"): JoinKind.SEMI,
    ("", "ANTI"): JoinKind.ANTI,
    ("LEFT", "SEMI"): JoinKind.SEMI,
    ("LEFT", "ANTI"): JoinKind.ANTI,
}


def bind_join(context: Context, select: exp.Select) -> JoinQuery | AggregateQuery:
    """Return the join a SELECT means; one of aggregations by their keys is an aggregation itself."""
    check_clauses(context, select, _CLAUSES)
    joins = select.args["joins"]
    for join in joins:
        check_clauses(context, join, frozenset({"this", "side", "kind", "on", "using"}))
    kinds = [_kind(context, join) for join in joins]
    if all(map(is_aggregate, [source_of(context, select), *(join.this for join in joins)])):
        merged = merged_aggregations(context, select, kinds)
        if merged is not None:
            return merged
    joined = _joined(context, select)
    where = [joined.pushed(part) for part in conjuncts(bind_where(context, select, joined))]
    builder = _Builder(joined)
    tree, predicate = builder.tree(where)
    inputs = tuple(builder.input(index) for index in range(len(joined.sides)))
    if aggregates(select):
        groups = bind_groups(context, select, joined)
        calls = tuple(replace(call, args=tuple(map(joined.pushed, call.args))) for call in groups.calls)
        grouping = JoinGrouping(tuple(map(joined.pushed, groups.keys)), calls, groups.having)
        return JoinQuery(inputs, tree, groups.output, groups.schema, predicate, grouping)
    items = bind_items(context, select, Scope(context.source, joined, "SELECT", window=joined.window))
    bounds = {START.name: WINDOW_START, END.name: WINDOW_END}
    output = tuple(substitute(joined.pushed(item.value), bounds) for item in items)
    schema = Schema(tuple(Field(item.name, value.type) for item, value in zip(items, output, strict=True)))
    return JoinQuery(inputs, tree, output, schema, predicate)


def _joined(context: Context, select: exp.Select) -> Joined:
    """Bind the sides and their conditions, from left to right."""
    joins = select.args["joins"]
    if len(joins) >= MAX_INPUTS:
        raise context.source.error(joins[MAX_INPUTS - 1], f"a join of more than {MAX_INPUTS} streams is not supported")
    found = Joined((_side(context, select.args["from_"].this, ()),))
    for join in joins:
        kind = _kind(context, join)
        side = _side(context, join.this, found.sides)
        wider = replace(found, sides=(*found.sides, side), steps=(*found.steps, Step(JoinKind.INNER, ())))
        conditions: tuple[Expression, ...] = ()
        if join.args.get("on") is not None:
            conditions = tuple(conjuncts(bind_condition(Scope(context.source, wider, "ON"), join.args["on"])))
        for name in join.args.get("using") or []:
            conditions = (*conditions, _using(context, name, found, wider))
        merged = {**found.merged}
        for name in join.args.get("using") or []:
            merged[name.name.lower()] = _merged(name.name, kind, found, side)
        found = replace(wider, steps=(*found.steps, Step(kind, conditions)), merged=merged)
    _check_results(context, select, found)
    if common_ends([side.window for side in found.sides if isinstance(side.window, Sliding)]) is None:
        raise context.source.error(joins[-1], "the windows of this join never end at the same time", hint="use the same window")
    return found


def _check_results(context: Context, select: exp.Select, found: Joined) -> None:
    """Refuse results of windows that do not end where those of tumbling ones do, in which they are joined."""
    for number, side in enumerate(found.sides):
        found_of = side.results_of
        if found_of is not None and found_of.ends.offset and _is_own(side):
            raise context.source.error(
                [source_of(context, select), *select.args["joins"]][number],
                f"results of windows of {duration(found_of.size)} every {duration(found_of.ends.step)} cannot be joined",
                hint="make the size a multiple of the slide, or put a window around: TUMBLE((SELECT …), '8 seconds')",
            )


def _is_own(side: Relation) -> bool:
    """Tell whether a side has results, each in the window it is a result of."""
    return side.results_of is not None and side.window == replace(side, window=None).same_window


def _kind(context: Context, join: exp.Join) -> JoinKind:
    written = (join.side.upper(), join.kind.upper().replace("OUTER", ""))
    if written not in _KINDS:
        raise context.source.error(join, f"{' '.join(filter(None, written))} JOIN is not supported")
    return _KINDS[written]


def _side(context: Context, node: exp.Expr, before: tuple[Relation, ...]) -> Relation:
    side = bind_source(context, node)
    if side.same_window is not None:
        side = replace(side, window=side.same_window)
    if not isinstance(side.window, Sliding):
        what = f"'{side.name}'" if side.name else "one side"
        why = "has no window" if side.window is None else "is in a SESSION window"
        raise context.source.error(
            node, f"a join needs windows, and {what} {why}", hint="write TUMBLE(stream, '8 seconds') or HOP(stream, size, slide)"
        )
    if len(side.branches) > 1:
        raise context.source.error(node, "a UNION ALL cannot be joined yet", hint="join the streams one by one")
    if side.name is None or any((one.name or "").lower() == side.name.lower() for one in before):
        which = "has no name" if side.name is None else f"has the name '{side.name}', like one before"
        raise context.source.error(node, f"this side of the join {which}", hint="give it an alias: TUMBLE(…) AS t")
    return side


def _using(context: Context, node: exp.Expr, before: Joined, wider: Joined) -> Expression:
    name, last = node.name, wider.sides[-1]
    try:
        left, right = before.lookup("", name), wider.lookup(last.name or "", name)
        equal = None if left is None or right is None else compare("eq", left, right)
    except SqlError as problem:
        raise context.source.placed(problem, node) from None
    if equal is None:
        raise context.source.error(node, f"column '{name}' of USING is not on both sides", hint="write ON with two columns")
    return equal


def _merged(name: str, kind: JoinKind, before: Joined, side: Relation) -> Expression:
    """Return what the one column of USING means: that of a side that is always there, else whichever is."""
    left = before.lookup("", name)
    found = side.find(name)
    assert left is not None
    assert found is not None
    right = Column(f"{len(before.sides)}.{found.name}", found.type)
    if kind is JoinKind.FULL:
        return Call("coalesce", (left, right), left.type)
    return right if kind is JoinKind.RIGHT else left


@dataclass(slots=True)
class _Node:
    """A join under construction: conditions that stay at it."""

    kind: JoinKind
    left: _Node | int
    right: _Node | int
    conditions: list[Expression] = field(default_factory=list)


@dataclass(slots=True)
class _Builder:
    """Puts every condition where it belongs; `selections` are those of one input each."""

    joined: Joined
    selections: dict[int, list[Expression]] = field(default_factory=dict)

    def input(self, index: int) -> JoinInput:
        """Return an input with all that selects its rows."""
        branch, window = self.joined.sides[index].branches[0], self.joined.sides[index].window
        assert isinstance(window, Sliding)
        own = [*conjuncts(branch.predicate), *map(lowered, self.selections.get(index, []))]
        side = self.joined.sides[index]
        span = side.results_of.size if side.results_of is not None and _is_own(side) else 0
        return JoinInput(branch.stream.name, window, conjunction(own), span)

    def tree(self, where: list[Expression]) -> tuple[JoinNode, Expression]:
        """Return the tree of joins, and what of WHERE is left for joined rows."""
        root: _Node | int = 0
        for index, step in enumerate(self.joined.steps):
            root = _Node(step.kind, root, index + 1)
            for condition in step.conditions:
                self._place_on(root, self.joined.pushed(condition, index))
        left_over = [part for part in where if part != TRUE and not self._place(root, part)]
        assert isinstance(root, _Node)
        if all(step.kind is JoinKind.INNER for step in self.joined.steps):
            root = self._in_order(root)
        return self._finished(root), conjunction(left_over)

    def _place_on(self, node: _Node, condition: Expression) -> None:
        """Put a condition of ON at its join, or below it where rows that fail it make no other difference."""
        used = _inputs(condition)
        below: _Node | int | None = None
        if used and used <= _below(node.right) and not node.kind.keeps_right:
            below = node.right
        elif used and used <= _below(node.left) and not node.kind.keeps_left:
            below = node.left
        if condition != TRUE and (below is None or not self._place(below, condition)):
            node.conditions.append(condition)

    def _place(self, node: _Node | int, condition: Expression) -> bool:
        """Put a condition on the rows of a node inside it; False if it cannot be."""
        if isinstance(node, int):
            if not _selects(condition):
                return False
            self.selections.setdefault(node, []).append(condition)
            return True
        used = _inputs(condition)
        if used and used <= _below(node.left) and not node.kind.keeps_right and self._place(node.left, condition):
            return True
        pairs = node.kind.pairs and not node.kind.keeps_left
        if used and used <= _below(node.right) and pairs and self._place(node.right, condition):
            return True
        if node.kind is not JoinKind.INNER:
            return False
        node.conditions.append(condition)
        return True

    def _in_order(self, root: _Node) -> _Node:
        """Return inner joins in an order in which each has an equality if it can, as near to that of the text as possible."""
        conditions: list[Expression] = []
        walk: _Node | int = root
        while isinstance(walk, _Node):
            conditions = [*walk.conditions, *conditions]
            walk = walk.left
        waiting = list(range(len(self.joined.sides)))
        first = next((i for i in waiting if _equals_another(i, waiting, conditions)), 0)
        waiting.remove(first)
        tree: _Node | int = first
        while waiting:
            inside = _below(tree)
            following = max(waiting, key=lambda i: (_nearness(inside, i, conditions), -i))
            waiting.remove(following)
            reached = inside | {following}
            tree = _Node(JoinKind.INNER, tree, following, [c for c in conditions if _inputs(c) <= reached])
            conditions = [c for c in conditions if not _inputs(c) <= reached]
        assert isinstance(tree, _Node)
        return tree

    def _finished(self, node: _Node) -> JoinNode:
        equalities, rest = [], []
        for condition in node.conditions:
            found = _equality(condition, _below(node.left), _below(node.right))
            if found is None:
                rest.append(condition)
            else:
                equalities.append(found)
        return JoinNode(node.kind, self._side(node.left), self._side(node.right), tuple(equalities), conjunction(rest))

    def _side(self, node: _Node | int) -> JoinTree:
        return node if isinstance(node, int) else self._finished(node)


def _below(node: _Node | int) -> frozenset[int]:
    return frozenset({node}) if isinstance(node, int) else _below(node.left) | _below(node.right)


def _inputs(condition: Expression) -> frozenset[int]:
    return frozenset(owner(name)[0] for name in columns(condition))


def _selects(condition: Expression) -> bool:
    """Tell whether a condition on one input is over columns of its stream: not over whether there is a row at all."""
    return all(owner(name)[1] for name in columns(condition))


def _equals_another(index: int, others: Iterable[int], conditions: Sequence[Expression]) -> bool:
    """Tell whether an input has an equality with another one alone."""
    return any(_nearness(frozenset({index}), other, conditions) == _EQUAL for other in others if other != index)


def _nearness(inside: frozenset[int], index: int, conditions: Sequence[Expression]) -> int:
    """Tell what an input has in common with those so far: an equality, another condition, or nothing."""
    if any(_equality(condition, inside, frozenset({index})) for condition in conditions):
        return _EQUAL
    used = map(_inputs, conditions)
    return _RELATED if any(index in one and len(one) > 1 and one <= inside | {index} for one in used) else _UNRELATED


def _equality(condition: Expression, left: frozenset[int], right: frozenset[int]) -> Equality | None:
    """Return the condition as an equality of the two sides, if it is one."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    one, two = condition.args
    if _inputs(one) and _inputs(two):
        if _inputs(one) <= left and _inputs(two) <= right:
            return Equality(one, two)
        if _inputs(one) <= right and _inputs(two) <= left:
            return Equality(two, one)
    return None
