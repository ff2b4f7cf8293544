"""Binds a SELECT that joins streams in TUMBLE or HOP windows.

The binder splits conditions at AND and pushes each as far down as its semantics allow: a condition on one stream becomes a
predicate of that input, an equality of two sides becomes a join key, and any other is evaluated on the rows joined so far. It
orders inner joins so that every stream has an equality with those before it, where equalities exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import (
    TRUE,
    Call,
    Column,
    Expression,
    column_names,
    combine_conjuncts,
    split_conjuncts,
    substitute_columns,
)
from headrace.model.schema import Field, Schema
from headrace.model.window import HopWindow, find_common_ends, format_duration
from headrace.plan.join import (
    MAX_WINDOW_JOIN_INPUTS,
    JoinEquality,
    JoinGrouping,
    JoinInput,
    JoinKind,
    JoinNode,
    JoinTree,
    WindowJoinQuery,
    split_joined_name,
    to_stream_columns,
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


def bind_join(context: Context, select: exp.Select) -> WindowJoinQuery | AggregateQuery:
    """Bind the join of a SELECT; a join of aggregations on their keys becomes a single aggregation."""
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
    where = [joined.pushed(part) for part in split_conjuncts(bind_where(context, select, joined))]
    builder = _Builder(joined)
    tree, predicate = builder.tree(where)
    inputs = tuple(builder.input(index) for index in range(len(joined.sides)))
    if aggregates(select):
        groups = bind_groups(context, select, joined)
        calls = tuple(replace(call, args=tuple(map(joined.pushed, call.args))) for call in groups.calls)
        grouping = JoinGrouping(tuple(map(joined.pushed, groups.keys)), calls, groups.having)
        return WindowJoinQuery(inputs, tree, groups.output, groups.schema, predicate, grouping)
    items = bind_items(context, select, Scope(context.source, joined, "SELECT", window=joined.window))
    bounds = {START.name: WINDOW_START, END.name: WINDOW_END}
    output = tuple(substitute_columns(joined.pushed(item.value), bounds) for item in items)
    schema = Schema(tuple(Field(item.name, value.type) for item, value in zip(items, output, strict=True)))
    return WindowJoinQuery(inputs, tree, output, schema, predicate)


def _joined(context: Context, select: exp.Select) -> Joined:
    """Bind the sides and their conditions from left to right."""
    joins = select.args["joins"]
    if len(joins) >= MAX_WINDOW_JOIN_INPUTS:
        raise context.source.error(
            joins[MAX_WINDOW_JOIN_INPUTS - 1], f"a join of more than {MAX_WINDOW_JOIN_INPUTS} streams is not supported"
        )
    scope = Joined((_side(context, select.args["from_"].this, ()),))
    for join in joins:
        kind = _kind(context, join)
        side = _side(context, join.this, scope.sides)
        extended = replace(scope, sides=(*scope.sides, side), steps=(*scope.steps, Step(JoinKind.INNER, ())))
        conditions: tuple[Expression, ...] = ()
        if join.args.get("on") is not None:
            conditions = tuple(split_conjuncts(bind_condition(Scope(context.source, extended, "ON"), join.args["on"])))
        for name in join.args.get("using") or []:
            conditions = (*conditions, _using(context, name, scope, extended))
        merged = {**scope.merged}
        for name in join.args.get("using") or []:
            merged[name.name.lower()] = _merged(name.name, kind, scope, side)
        scope = replace(extended, steps=(*scope.steps, Step(kind, conditions)), merged=merged)
    _check_results(context, select, scope)
    if find_common_ends([side.window for side in scope.sides if isinstance(side.window, HopWindow)]) is None:
        raise context.source.error(joins[-1], "the windows of this join never end at the same time", hint="use the same window")
    return scope


def _check_results(context: Context, select: exp.Select, scope: Joined) -> None:
    """Reject results of windows whose ends do not coincide with those of the tumbling windows in which they are joined."""
    for number, side in enumerate(scope.sides):
        windows = side.results_of
        if windows is not None and windows.ends.offset and _is_own(side):
            raise context.source.error(
                [source_of(context, select), *select.args["joins"]][number],
                f"results of windows of {format_duration(windows.size)} every {format_duration(windows.ends.step)} cannot be joined",
                hint="make the size a multiple of the slide, or put a window around: TUMBLE((SELECT …), '8 seconds')",
            )


def _is_own(side: Relation) -> bool:
    """Tell whether a side consists of results, each in the window that produced it."""
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
    if not isinstance(side.window, HopWindow):
        subject = f"'{side.name}'" if side.name else "one side"
        reason = "has no window" if side.window is None else "is in a SESSION window"
        raise context.source.error(
            node,
            f"a join needs windows, and {subject} {reason}",
            hint="write TUMBLE(stream, '8 seconds') or HOP(stream, size, slide)",
        )
    if len(side.branches) > 1:
        raise context.source.error(node, "a UNION ALL cannot be joined yet", hint="join the streams one by one")
    if side.name is None or any((other.name or "").lower() == side.name.lower() for other in before):
        fault = "has no name" if side.name is None else f"repeats the name '{side.name}' of an earlier side"
        raise context.source.error(node, f"this side of the join {fault}", hint="give it an alias: TUMBLE(…) AS t")
    return side


def _using(context: Context, node: exp.Expr, before: Joined, extended: Joined) -> Expression:
    name, last = node.name, extended.sides[-1]
    try:
        left, right = before.lookup("", name), extended.lookup(last.name or "", name)
        equal = None if left is None or right is None else compare("eq", left, right)
    except SqlError as problem:
        raise context.source.placed(problem, node) from None
    if equal is None:
        raise context.source.error(node, f"column '{name}' of USING is not on both sides", hint="write ON with two columns")
    return equal


def _merged(name: str, kind: JoinKind, before: Joined, side: Relation) -> Expression:
    """Return the value of a USING column: that of the side that is never missing, in a FULL join that of either side."""
    left = before.lookup("", name)
    column = side.find(name)
    assert left is not None
    assert column is not None
    right = Column(f"{len(before.sides)}.{column.name}", column.type)
    if kind is JoinKind.FULL:
        return Call("coalesce", (left, right), left.type)
    return right if kind is JoinKind.RIGHT else left


@dataclass(slots=True)
class _Node:
    """A join under construction, with the conditions evaluated at this join."""

    kind: JoinKind
    left: _Node | int
    right: _Node | int
    conditions: list[Expression] = field(default_factory=list)


@dataclass(slots=True)
class _Builder:
    """Builds the join tree and assigns every condition to an input or a join."""

    joined: Joined
    selections: dict[int, list[Expression]] = field(default_factory=dict)

    def input(self, index: int) -> JoinInput:
        """Return an input with all its predicates."""
        branch, window = self.joined.sides[index].branches[0], self.joined.sides[index].window
        assert isinstance(window, HopWindow)
        predicates = [*split_conjuncts(branch.predicate), *map(to_stream_columns, self.selections.get(index, []))]
        side = self.joined.sides[index]
        span = side.results_of.size if side.results_of is not None and _is_own(side) else 0
        return JoinInput(branch.stream.name, window, combine_conjuncts(predicates), span)

    def tree(self, where: list[Expression]) -> tuple[JoinNode, Expression]:
        """Return the join tree, and the WHERE conditions that remain for joined rows."""
        root: _Node | int = 0
        for index, step in enumerate(self.joined.steps):
            root = _Node(step.kind, root, index + 1)
            for condition in step.conditions:
                self._place_on(root, self.joined.pushed(condition, index))
        remaining = [part for part in where if part != TRUE and not self._place(root, part)]
        assert isinstance(root, _Node)
        if all(step.kind is JoinKind.INNER for step in self.joined.steps):
            root = self._in_order(root)
        return self._finished(root), combine_conjuncts(remaining)

    def _place_on(self, node: _Node, condition: Expression) -> None:
        """Assign an ON condition to its join, or push it below where dropping the rows that fail it has no other effect."""
        used = _inputs(condition)
        below: _Node | int | None = None
        if used and used <= _below(node.right) and not node.kind.keeps_right:
            below = node.right
        elif used and used <= _below(node.left) and not node.kind.keeps_left:
            below = node.left
        if condition != TRUE and (below is None or not self._place(below, condition)):
            node.conditions.append(condition)

    def _place(self, node: _Node | int, condition: Expression) -> bool:
        """Push a condition on the rows of a node into that node; return False if that changes the result."""
        if isinstance(node, int):
            if not _selects(condition):
                return False
            self.selections.setdefault(node, []).append(condition)
            return True
        used = _inputs(condition)
        if used and used <= _below(node.left) and not node.kind.keeps_right and self._place(node.left, condition):
            return True
        pairs = node.kind.has_both_sides and not node.kind.keeps_left
        if used and used <= _below(node.right) and pairs and self._place(node.right, condition):
            return True
        if node.kind is not JoinKind.INNER:
            return False
        node.conditions.append(condition)
        return True

    def _in_order(self, root: _Node) -> _Node:
        """Reorder inner joins so that each has an equality where possible, as close to the order of the text as possible."""
        conditions: list[Expression] = []
        node: _Node | int = root
        while isinstance(node, _Node):
            conditions = [*node.conditions, *conditions]
            node = node.left
        pending = list(range(len(self.joined.sides)))
        first = next((i for i in pending if _equals_another(i, pending, conditions)), 0)
        pending.remove(first)
        tree: _Node | int = first
        while pending:
            joined_inputs = _below(tree)
            next_input = max(pending, key=lambda i: (_nearness(joined_inputs, i, conditions), -i))
            pending.remove(next_input)
            extended = joined_inputs | {next_input}
            tree = _Node(JoinKind.INNER, tree, next_input, [c for c in conditions if _inputs(c) <= extended])
            conditions = [c for c in conditions if not _inputs(c) <= extended]
        assert isinstance(tree, _Node)
        return tree

    def _finished(self, node: _Node) -> JoinNode:
        equalities, rest = [], []
        for condition in node.conditions:
            equality = _equality(condition, _below(node.left), _below(node.right))
            if equality is None:
                rest.append(condition)
            else:
                equalities.append(equality)
        return JoinNode(node.kind, self._side(node.left), self._side(node.right), tuple(equalities), combine_conjuncts(rest))

    def _side(self, node: _Node | int) -> JoinTree:
        return node if isinstance(node, int) else self._finished(node)


def _below(node: _Node | int) -> frozenset[int]:
    return frozenset({node}) if isinstance(node, int) else _below(node.left) | _below(node.right)


def _inputs(condition: Expression) -> frozenset[int]:
    return frozenset(split_joined_name(name)[0] for name in column_names(condition))


def _selects(condition: Expression) -> bool:
    """Tell whether a condition on one input reads only stream columns, not the presence of a row."""
    return all(split_joined_name(name)[1] for name in column_names(condition))


def _equals_another(index: int, others: Iterable[int], conditions: Sequence[Expression]) -> bool:
    """Tell whether an input has an equality with another single input."""
    return any(_nearness(frozenset({index}), other, conditions) == _EQUAL for other in others if other != index)


def _nearness(joined_inputs: frozenset[int], index: int, conditions: Sequence[Expression]) -> int:
    """Rank how an input connects to the joined ones: by an equality, by another condition, or not at all."""
    if any(_equality(condition, joined_inputs, frozenset({index})) for condition in conditions):
        return _EQUAL
    used_inputs = map(_inputs, conditions)
    return (
        _RELATED
        if any(index in inputs and len(inputs) > 1 and inputs <= joined_inputs | {index} for inputs in used_inputs)
        else _UNRELATED
    )


def _equality(condition: Expression, left: frozenset[int], right: frozenset[int]) -> JoinEquality | None:
    """Return the condition as an equality of the two sides, or None."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    first, second = condition.args
    if _inputs(first) and _inputs(second):
        if _inputs(first) <= left and _inputs(second) <= right:
            return JoinEquality(first, second)
        if _inputs(first) <= right and _inputs(second) <= left:
            return JoinEquality(second, first)
    return None
