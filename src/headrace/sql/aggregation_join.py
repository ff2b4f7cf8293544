"""Merges a join of two aggregations on all their keys, in the same window, into one aggregation over all their streams.

    (SELECT user_id, SUM(price) AS paid FROM TUMBLE(purchases, '5 s') GROUP BY user_id) p
    JOIN (SELECT user_id, SUM(cost) AS cost FROM TUMBLE(ads, '5 s') GROUP BY user_id) a ON p.user_id = a.user_id

Each side has at most one row per key and window, so the joined row is the group of that key over the rows of both sides.
The aggregates of a side read only the rows of that side; a row count per side records which sides have a row. The join
therefore needs no state of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import (
    TRUE,
    Call,
    Column,
    Expression,
    Literal,
    column_names,
    combine_conjuncts,
    split_conjuncts,
    substitute_columns,
)
from headrace.model.types import Field, Schema
from headrace.model.window import HopWindow
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateBranch, AggregateQuery, agg_column, key_column
from headrace.plan.window_join import JoinKind, joined_column, split_joined_name
from headrace.sql.aggregation import bind_aggregation
from headrace.sql.casts import cast_to
from headrace.sql.expressions import bind_condition
from headrace.sql.operators import make_comparison
from headrace.sql.relation import Relation
from headrace.sql.scope import END_PLACEHOLDER, START_PLACEHOLDER, BoundJoinClause, Scope, WindowJoinScope
from headrace.sql.select import BindContext, bind_from, bind_items, bind_where, has_aggregation, with_ctes
from headrace.sql.types import BIGINT, BOOLEAN

_ONE_LITERAL = Literal(1, BIGINT)


@dataclass(frozen=True, slots=True)
class _AggregationSide:
    """One aggregation: its plan, and the index of its first aggregate among those of both sides."""

    plan: AggregateQuery
    first_aggregate: int

    @property
    def keys(self) -> tuple[Expression, ...]:
        """The group keys of the aggregation."""
        return self.plan.branches[0].keys

    @property
    def row_count(self) -> Expression:
        """The number of rows of this side in a group; the last of its aggregates."""
        return agg_column(self.first_aggregate + len(self.plan.branches[0].aggregates), BIGINT)


def is_aggregation(node: exp.Expr) -> bool:
    """Tell whether a side of a join is an aggregation."""
    return isinstance(node, exp.Subquery) and isinstance(node.this, exp.Select) and has_aggregation(node.this)


def merge_aggregations(context: BindContext, select: exp.Select, kinds: Sequence[JoinKind]) -> AggregateQuery | None:
    """Return a join of two aggregations as one aggregation; None if it has no such form."""
    joins = select.args["joins"]
    nodes = [select.args["from_"].this, *(join.this for join in joins)]
    if len(nodes) > 2 or kinds[0] is JoinKind.FULL or has_aggregation(select):
        return None
    sides = _bind_sides(context, nodes)
    if sides is None:
        return None
    joined = WindowJoinScope(
        tuple(_to_relation(node, side) for node, side in zip(nodes, sides, strict=True)), (BoundJoinClause(kinds[0], ()),)
    )
    merger = _AggregationMerger(context, select, joined, sides, kinds[0])
    return merger.build_query() if merger.is_mergeable else None


def _bind_sides(context: BindContext, nodes: Sequence[exp.Expr]) -> tuple[_AggregationSide, _AggregationSide] | None:
    plans = []
    for node in nodes:
        if node.this.args.get("joins"):
            return None
        inner_context = with_ctes(context, node.this)
        plans.append(bind_aggregation(inner_context, node.this, bind_from(inner_context, node.this)))
    if plans[0].window != plans[1].window or not isinstance(plans[0].window, HopWindow):
        return None
    return _AggregationSide(plans[0], 0), _AggregationSide(plans[1], len(plans[0].branches[0].aggregates) + 1)


def _to_relation(node: exp.Expr, side: _AggregationSide) -> Relation:
    alias = node.args.get("alias")
    return Relation(side.plan.schema.fields, (), alias.name if alias is not None else None, side.plan.window)


@dataclass(frozen=True, slots=True)
class _MergedKeys:
    """The equated keys of both sides in one order: position by side and key number, and their common types."""

    positions: tuple[dict[int, int], dict[int, int]]
    types: tuple[pa.DataType, ...]

    def key_column_of(self, side: int, key: int) -> Column:
        """Return the column of the merged groups that holds a key of a side."""
        place = self.positions[side][key]
        return key_column(place, self.types[place])


class _AggregationMerger:
    """Merges two aggregations that are joined on their keys."""

    def __init__(
        self,
        context: BindContext,
        select: exp.Select,
        joined: WindowJoinScope,
        sides: tuple[_AggregationSide, _AggregationSide],
        kind: JoinKind,
    ) -> None:
        self._source, self._context, self._select = context.source, context, select
        self._scope, self._sides, self._kind = joined, sides, kind
        self._keys, self._other_conditions = self._match_keys()

    @property
    def is_mergeable(self) -> bool:
        """Whether the conditions equate every key of both sides exactly once."""
        return all(
            len(places) == len(side.keys) == len(self._keys.types)
            for places, side in zip(self._keys.positions, self._sides, strict=True)
        )

    def build_query(self) -> AggregateQuery:
        """Return the merged aggregation."""
        plain = [self._map_outputs(number) for number in (0, 1)]
        has_row = [self._has_row_condition(number) for number in (0, 1)]
        non_null_keys = [_negate(Call("is_null", (key_column(n, kind),), BOOLEAN)) for n, kind in enumerate(self._keys.types)]
        is_matched = combine_conjuncts(
            [*has_row, *non_null_keys, *(self._rewrite_over_groups(part, plain) for part in self._other_conditions)]
        )
        values = [self._null_unmatched(number, plain[number], is_matched) for number in (0, 1)]
        window = self._sides[0].plan.window
        items = bind_items(self._context, self._select, Scope(self._source, self._scope, "SELECT", window=window))
        output = tuple(self._rewrite_over_groups(item.value, values) for item in items)
        where = split_conjuncts(self._rewrite_over_groups(bind_where(self._context, self._select, self._scope), values))
        schema = Schema(tuple(Field(item.name, value.type) for item, value in zip(items, output, strict=True)))
        having = combine_conjuncts([*split_conjuncts(self._select_groups(has_row, is_matched)), *where])
        return AggregateQuery(window, (*self._iter_branches(0), *self._iter_branches(1)), output, schema, having)

    def _match_keys(self) -> tuple[_MergedKeys, list[Expression]]:
        """Return the keys that the conditions equate, and the other conditions."""
        join = self._select.args["joins"][0]
        pairs: list[tuple[int, int]] = []
        others: list[Expression] = []
        for condition in self._bind_conditions(join):
            pair = self._match_key_pair(condition)
            others += [condition] if pair is None and condition != TRUE else []
            pairs += [pair] if pair is not None else []
        equalities = [make_comparison("eq", self._sides[0].keys[a], self._sides[1].keys[b]) for a, b in pairs]
        types = tuple(equality.args[0].type for equality in equalities if isinstance(equality, Call))
        places = {a: n for n, (a, _) in enumerate(pairs)}, {b: n for n, (_, b) in enumerate(pairs)}
        return _MergedKeys(places, types), others

    def _bind_conditions(self, join: exp.Join) -> list[Expression]:
        if join.args.get("on") is not None:
            both = replace(
                self._scope, clauses=(BoundJoinClause(JoinKind.INNER, ()),)
            )  # ON sees both sides, also of a SEMI or ANTI join
            return split_conjuncts(bind_condition(Scope(self._source, both, "ON"), join.args["on"]))
        conditions = []
        for name in join.args.get("using") or []:
            left, right = (self._scope.sides[number].find_field(name.name) for number in (0, 1))
            if left is None or right is None:
                raise self._source.error_at_node(name, f"column '{name.name}' of USING is not on both sides", hint="write ON")
            conditions.append(
                make_comparison("eq", joined_column(0, left.name, left.type), joined_column(1, right.name, right.type))
            )
        return conditions

    def _match_key_pair(self, condition: Expression) -> tuple[int, int] | None:
        """Return the key numbers (first side, second side) that a condition equates, or None."""
        if not isinstance(condition, Call) or condition.function != "eq":
            return None
        key_by_side = dict(key for arg in condition.args if (key := self._find_key(arg)) is not None)
        return (key_by_side[0], key_by_side[1]) if set(key_by_side) == {0, 1} else None

    def _find_key(self, expression: Expression) -> tuple[int, int] | None:
        """Return side and number of the key that an expression refers to, ignoring casts; None if it is no key."""
        while isinstance(expression, Call) and expression.function == "cast":
            expression = expression.args[0]
        if not isinstance(expression, Column):
            return None
        number, name = split_joined_name(expression.name)
        plan = self._sides[number].plan
        value = plan.output[plan.schema.names.index(name)]
        return (number, int(value.name[3:])) if isinstance(value, Column) and value.name.startswith("key") else None

    def _map_group_columns(self, number: int) -> dict[str, Expression]:
        """Return the columns of the merged groups that replace the key and aggregate columns of a side."""
        side = self._sides[number]
        keys = {f"key{k}": cast_to(self._keys.key_column_of(number, k), key.type) for k, key in enumerate(side.keys)}
        calls = enumerate(side.plan.branches[0].aggregates)
        return {**keys, **{f"agg{n}": agg_column(side.first_aggregate + n, call.type) for n, call in calls}}

    def _map_outputs(self, number: int) -> dict[str, Expression]:
        plan, moved = self._sides[number].plan, self._map_group_columns(number)
        return {name: substitute_columns(value, moved) for name, value in zip(plan.schema.names, plan.output, strict=True)}

    def _has_row_condition(self, number: int) -> Expression:
        """Return the condition that a side has a row for a group."""
        side = self._sides[number]
        is_counted = Call("gt", (side.row_count, Literal(0, BIGINT)), BOOLEAN)
        return combine_conjuncts(
            [is_counted, *split_conjuncts(substitute_columns(side.plan.having, self._map_group_columns(number)))]
        )

    def _null_unmatched(self, number: int, values: dict[str, Expression], is_matched: Expression) -> dict[str, Expression]:
        """Return the outputs of a side in joined rows; in an outer join they are NULL for rows without a match."""
        may_be_unmatched = self._kind.keeps_left if number else self._kind.keeps_right
        if not may_be_unmatched or not self._kind.has_both_sides:
            return values
        return {name: Call("case", (is_matched, value, Literal(None, value.type)), value.type) for name, value in values.items()}

    def _select_groups(self, has_row: Sequence[Expression], is_matched: Expression) -> Expression:
        """Return the condition that selects the groups that are rows of the join."""
        if self._kind in (JoinKind.INNER, JoinKind.SEMI):
            return is_matched
        if self._kind is JoinKind.ANTI:
            unmatched = Call("case", (is_matched, Literal(False, BOOLEAN), TRUE), BOOLEAN)
            return combine_conjuncts([*split_conjuncts(has_row[0]), unmatched])
        return has_row[0] if self._kind is JoinKind.LEFT else has_row[1]

    def _rewrite_over_groups(self, expression: Expression, values: Sequence[dict[str, Expression]]) -> Expression:
        """Rewrite an expression over outputs of the sides as an expression over the merged groups."""
        replacements: dict[str, Expression] = {START_PLACEHOLDER.name: WINDOW_START, END_PLACEHOLDER.name: WINDOW_END}
        for name in column_names(expression):
            if name[:1].isdigit():
                number, column = split_joined_name(name)
                replacements[name] = values[number][column]
        return substitute_columns(expression, replacements)

    def _iter_branches(self, number: int) -> Iterator[AggregateBranch]:
        """Yield the branches of a side with the aggregates of both sides; the arguments of the other side are NULL."""
        for branch in self._sides[number].plan.branches:
            order = sorted(range(len(branch.keys)), key=lambda k: self._keys.positions[number][k])
            keys = tuple(cast_to(branch.keys[k], self._keys.types[self._keys.positions[number][k]]) for k in order)
            calls = [call for side in (0, 1) for call in self._iter_aggregates(side, branch if side == number else None)]
            yield AggregateBranch(branch.stream, keys, tuple(calls), branch.predicate)

    def _iter_aggregates(self, number: int, branch: AggregateBranch | None) -> Iterator[AggregateCall]:
        """Yield the aggregates and the row count of a side; with NULL arguments if `branch` is None."""
        side = self._sides[number].plan.branches[0]
        row_count = AggregateCall("count", (), BIGINT)
        for call in [*(side if branch is None else branch).aggregates, row_count]:
            args = call.args or (_ONE_LITERAL,)
            yield replace(call, args=args if branch is not None else tuple(Literal(None, arg.type) for arg in args))


def _negate(condition: Expression) -> Expression:
    return Call("not", (condition,), BOOLEAN)
