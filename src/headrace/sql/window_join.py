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
from headrace.model.types import Field, Schema
from headrace.model.window import HopWindow, find_common_ends, format_duration
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery
from headrace.plan.window_join import (
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
from headrace.sql.aggregation import bind_grouping
from headrace.sql.aggregation_join import is_aggregation, merge_aggregations
from headrace.sql.expressions import bind_condition
from headrace.sql.operators import make_comparison
from headrace.sql.relation import Relation
from headrace.sql.scope import END_PLACEHOLDER, START_PLACEHOLDER, BoundJoinClause, Scope, WindowJoinScope
from headrace.sql.select import BindContext, bind_from_item, bind_items, bind_where, check_clauses, get_from_item, has_aggregation

_SUPPORTED_CLAUSES = frozenset({"expressions", "from_", "where", "group", "having", "with_", "joins"})
_BY_EQUALITY, _BY_CONDITION, _NOT_CONNECTED = 2, 1, 0
_JOIN_KINDS = {
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


def bind_window_join(context: BindContext, select: exp.Select) -> WindowJoinQuery | AggregateQuery:
    """Bind the join of a SELECT; a join of aggregations on their keys becomes a single aggregation."""
    check_clauses(context, select, _SUPPORTED_CLAUSES)
    joins = select.args["joins"]
    for join in joins:
        check_clauses(context, join, frozenset({"this", "side", "kind", "on", "using"}))
    kinds = [resolve_join_kind(context, join) for join in joins]
    if all(map(is_aggregation, [get_from_item(context, select), *(join.this for join in joins)])):
        merged = merge_aggregations(context, select, kinds)
        if merged is not None:
            return merged
    joined = _bind_join_scope(context, select)
    where = [joined.push_down(part) for part in split_conjuncts(bind_where(context, select, joined))]
    builder = _JoinTreeBuilder(joined)
    tree, predicate = builder.build_tree(where)
    inputs = tuple(builder.build_input(index) for index in range(len(joined.sides)))
    if has_aggregation(select):
        groups = bind_grouping(context, select, joined)
        calls = tuple(replace(call, args=tuple(map(joined.push_down, call.args))) for call in groups.calls)
        grouping = JoinGrouping(tuple(map(joined.push_down, groups.keys)), calls, groups.having)
        return WindowJoinQuery(inputs, tree, groups.output, groups.schema, predicate, grouping)
    items = bind_items(context, select, Scope(context.source, joined, "SELECT", window=joined.window))
    bounds = {START_PLACEHOLDER.name: WINDOW_START, END_PLACEHOLDER.name: WINDOW_END}
    output = tuple(substitute_columns(joined.push_down(item.value), bounds) for item in items)
    schema = Schema(tuple(Field(item.name, value.type) for item, value in zip(items, output, strict=True)))
    return WindowJoinQuery(inputs, tree, output, schema, predicate)


def _bind_join_scope(context: BindContext, select: exp.Select) -> WindowJoinScope:
    """Bind the sides and their conditions from left to right."""
    joins = select.args["joins"]
    if len(joins) >= MAX_WINDOW_JOIN_INPUTS:
        raise context.source.error_at_node(
            joins[MAX_WINDOW_JOIN_INPUTS - 1], f"a join of more than {MAX_WINDOW_JOIN_INPUTS} streams is not supported"
        )
    scope = WindowJoinScope((_bind_join_side(context, select.args["from_"].this, ()),))
    for join in joins:
        kind = resolve_join_kind(context, join)
        side = _bind_join_side(context, join.this, scope.sides)
        extended = replace(scope, sides=(*scope.sides, side), clauses=(*scope.clauses, BoundJoinClause(JoinKind.INNER, ())))
        conditions: tuple[Expression, ...] = ()
        if join.args.get("on") is not None:
            conditions = tuple(split_conjuncts(bind_condition(Scope(context.source, extended, "ON"), join.args["on"])))
        for name in join.args.get("using") or []:
            conditions = (*conditions, _bind_using(context, name, scope, extended))
        merged = {**scope.using_columns}
        for name in join.args.get("using") or []:
            merged[name.name.lower()] = _merge_using_column(name.name, kind, scope, side)
        scope = replace(extended, clauses=(*scope.clauses, BoundJoinClause(kind, conditions)), using_columns=merged)
    _check_result_windows(context, select, scope)
    if find_common_ends([side.window for side in scope.sides if isinstance(side.window, HopWindow)]) is None:
        raise context.source.error_at_node(
            joins[-1], "the windows of this join never end at the same time", hint="use the same window"
        )
    return scope


def _check_result_windows(context: BindContext, select: exp.Select, scope: WindowJoinScope) -> None:
    """Reject results of windows whose ends do not coincide with those of the tumbling windows in which they are joined."""
    for number, side in enumerate(scope.sides):
        windows = side.result_windows
        if windows is not None and windows.ends.offset and _is_in_result_window(side):
            raise context.source.error_at_node(
                [get_from_item(context, select), *select.args["joins"]][number],
                f"results of windows of {format_duration(windows.size)} every {format_duration(windows.ends.step)} "
                "cannot be joined",
                hint="make the size a multiple of the slide, or put a window around: TUMBLE((SELECT …), '8 seconds')",
            )


def _is_in_result_window(side: Relation) -> bool:
    """Tell whether a side consists of results, each in the window that produced it."""
    return side.result_windows is not None and side.window == replace(side, window=None).inherited_window


def resolve_join_kind(context: BindContext, join: exp.Join) -> JoinKind:
    """Return the kind of a join as it is written."""
    written = (join.side.upper(), join.kind.upper().replace("OUTER", ""))
    if written not in _JOIN_KINDS:
        raise context.source.error_at_node(join, f"{' '.join(filter(None, written))} JOIN is not supported")
    return _JOIN_KINDS[written]


def _bind_join_side(context: BindContext, node: exp.Expr, before: tuple[Relation, ...]) -> Relation:
    side = bind_from_item(context, node)
    if side.inherited_window is not None:
        side = replace(side, window=side.inherited_window)
    if not isinstance(side.window, HopWindow):
        subject = f"'{side.name}'" if side.name else "one side"
        reason = "has no window" if side.window is None else "is in a SESSION window"
        raise context.source.error_at_node(
            node,
            f"a join needs windows, and {subject} {reason}",
            hint="write TUMBLE(stream, '8 seconds') or HOP(stream, size, slide)",
        )
    try:
        side = context.derived_tables.unite(side)
    except SqlError as problem:
        raise context.source.with_location(problem, node) from None
    if side.name is None or any((other.name or "").lower() == side.name.lower() for other in before):
        fault = "has no name" if side.name is None else f"repeats the name '{side.name}' of an earlier side"
        raise context.source.error_at_node(node, f"this side of the join {fault}", hint="give it an alias: TUMBLE(…) AS t")
    return side


def _bind_using(context: BindContext, node: exp.Expr, before: WindowJoinScope, extended: WindowJoinScope) -> Expression:
    name, last = node.name, extended.sides[-1]
    try:
        left, right = before.lookup_column("", name), extended.lookup_column(last.name or "", name)
        equal = None if left is None or right is None else make_comparison("eq", left, right)
    except SqlError as problem:
        raise context.source.with_location(problem, node) from None
    if equal is None:
        raise context.source.error_at_node(
            node, f"column '{name}' of USING is not on both sides", hint="write ON with two columns"
        )
    return equal


def _merge_using_column(name: str, kind: JoinKind, before: WindowJoinScope, side: Relation) -> Expression:
    """Return the value of a USING column: that of the side that is never missing, in a FULL join that of either side."""
    left = before.lookup_column("", name)
    column = side.find_field(name)
    assert left is not None
    assert column is not None
    right = Column(f"{len(before.sides)}.{column.name}", column.type)
    if kind is JoinKind.FULL:
        return Call("coalesce", (left, right), left.type)
    return right if kind is JoinKind.RIGHT else left


@dataclass(slots=True)
class _DraftNode:
    """A join under construction, with the conditions evaluated at this join."""

    kind: JoinKind
    left: _DraftNode | int
    right: _DraftNode | int
    conditions: list[Expression] = field(default_factory=list)


@dataclass(slots=True)
class _JoinTreeBuilder:
    """Builds the join tree and assigns every condition to an input or a join."""

    scope: WindowJoinScope
    input_predicates: dict[int, list[Expression]] = field(default_factory=dict)

    def build_input(self, index: int) -> JoinInput:
        """Return an input with all its predicates."""
        branch, window = self.scope.sides[index].branches[0], self.scope.sides[index].window
        assert isinstance(window, HopWindow)
        predicates = [*split_conjuncts(branch.predicate), *map(to_stream_columns, self.input_predicates.get(index, []))]
        side = self.scope.sides[index]
        span = side.result_windows.size if side.result_windows is not None and _is_in_result_window(side) else 0
        return JoinInput(branch.stream.name, window, combine_conjuncts(predicates), span)

    def build_tree(self, where: list[Expression]) -> tuple[JoinNode, Expression]:
        """Return the join tree, and the WHERE conditions that remain for joined rows."""
        root: _DraftNode | int = 0
        for index, step in enumerate(self.scope.clauses):
            root = _DraftNode(step.kind, root, index + 1)
            for condition in step.conditions:
                self._place_on_condition(root, self.scope.push_down(condition, index))
        remaining = [part for part in where if part != TRUE and not self._push_condition(root, part)]
        assert isinstance(root, _DraftNode)
        if all(step.kind is JoinKind.INNER for step in self.scope.clauses):
            root = self._reorder_inner_joins(root)
        return self._finish_node(root), combine_conjuncts(remaining)

    def _place_on_condition(self, node: _DraftNode, condition: Expression) -> None:
        """Assign an ON condition to its join, or push it below where dropping the rows that fail it has no other effect."""
        used = _referenced_inputs(condition)
        below: _DraftNode | int | None = None
        if used and used <= _inputs_below(node.right) and not node.kind.keeps_right:
            below = node.right
        elif used and used <= _inputs_below(node.left) and not node.kind.keeps_left:
            below = node.left
        if condition != TRUE and (below is None or not self._push_condition(below, condition)):
            node.conditions.append(condition)

    def _push_condition(self, node: _DraftNode | int, condition: Expression) -> bool:
        """Push a condition on the rows of a node into that node; return False if that changes the result."""
        if isinstance(node, int):
            if not _is_row_predicate(condition):
                return False
            self.input_predicates.setdefault(node, []).append(condition)
            return True
        used = _referenced_inputs(condition)
        if used and used <= _inputs_below(node.left) and not node.kind.keeps_right and self._push_condition(node.left, condition):
            return True
        pairs = node.kind.has_both_sides and not node.kind.keeps_left
        if used and used <= _inputs_below(node.right) and pairs and self._push_condition(node.right, condition):
            return True
        if node.kind is not JoinKind.INNER:
            return False
        node.conditions.append(condition)
        return True

    def _reorder_inner_joins(self, root: _DraftNode) -> _DraftNode:
        """Reorder inner joins so that each has an equality where possible, as close to the order of the text as possible."""
        conditions: list[Expression] = []
        node: _DraftNode | int = root
        while isinstance(node, _DraftNode):
            conditions = [*node.conditions, *conditions]
            node = node.left
        pending = list(range(len(self.scope.sides)))
        first = next((i for i in pending if _has_equality(i, pending, conditions)), 0)
        pending.remove(first)
        tree: _DraftNode | int = first
        while pending:
            joined_inputs = _inputs_below(tree)
            next_input = max(pending, key=lambda i: (_rank_connection(joined_inputs, i, conditions), -i))
            pending.remove(next_input)
            extended = joined_inputs | {next_input}
            tree = _DraftNode(JoinKind.INNER, tree, next_input, [c for c in conditions if _referenced_inputs(c) <= extended])
            conditions = [c for c in conditions if not _referenced_inputs(c) <= extended]
        assert isinstance(tree, _DraftNode)
        return tree

    def _finish_node(self, node: _DraftNode) -> JoinNode:
        equalities, rest = [], []
        for condition in node.conditions:
            equality = _match_equality(condition, _inputs_below(node.left), _inputs_below(node.right))
            if equality is None:
                rest.append(condition)
            else:
                equalities.append(equality)
        return JoinNode(
            node.kind, self._finish_side(node.left), self._finish_side(node.right), tuple(equalities), combine_conjuncts(rest)
        )

    def _finish_side(self, node: _DraftNode | int) -> JoinTree:
        return node if isinstance(node, int) else self._finish_node(node)


def _inputs_below(node: _DraftNode | int) -> frozenset[int]:
    return frozenset({node}) if isinstance(node, int) else _inputs_below(node.left) | _inputs_below(node.right)


def _referenced_inputs(condition: Expression) -> frozenset[int]:
    return frozenset(split_joined_name(name)[0] for name in column_names(condition))


def _is_row_predicate(condition: Expression) -> bool:
    """Tell whether a condition on one input reads only stream columns, not the presence of a row."""
    return all(split_joined_name(name)[1] for name in column_names(condition))


def _has_equality(index: int, others: Iterable[int], conditions: Sequence[Expression]) -> bool:
    """Tell whether an input has an equality with another single input."""
    return any(_rank_connection(frozenset({index}), other, conditions) == _BY_EQUALITY for other in others if other != index)


def _rank_connection(joined_inputs: frozenset[int], index: int, conditions: Sequence[Expression]) -> int:
    """Rank how an input connects to the joined ones: by an equality, by another condition, or not at all."""
    if any(_match_equality(condition, joined_inputs, frozenset({index})) for condition in conditions):
        return _BY_EQUALITY
    used_inputs = map(_referenced_inputs, conditions)
    return (
        _BY_CONDITION
        if any(index in inputs and len(inputs) > 1 and inputs <= joined_inputs | {index} for inputs in used_inputs)
        else _NOT_CONNECTED
    )


def _match_equality(condition: Expression, left: frozenset[int], right: frozenset[int]) -> JoinEquality | None:
    """Return the condition as an equality of the two sides, or None."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    first, second = condition.args
    if _referenced_inputs(first) and _referenced_inputs(second):
        if _referenced_inputs(first) <= left and _referenced_inputs(second) <= right:
            return JoinEquality(first, second)
        if _referenced_inputs(first) <= right and _referenced_inputs(second) <= left:
            return JoinEquality(second, first)
    return None
