"""Stream flows of the DSL: queries as a sequence of steps over the rows of a stream.

    revenue = (
        hr.stream("purchases")
        .filter(hr.col("price") > 10)
        .window(hr.hop("8 seconds", "4 seconds"))
        .group_by("gem_pack")
        .agg(revenue=hr.sum("price"))
    )
    session.add(revenue, name="revenue")

A flow is an immutable value: each step returns a new flow, and several flows can continue from the same one. A flow makes the
same `DslStatement` as the Select builder, and so is translated to SQL text (`flow.sql`): it is shared, stored and checked like
any other query.
Unlike in the Select builder, order matters: a step sees the rows of the steps before it.

A text that is a name stands for a column, any other text for SQL. A flow from `Session.stream` is checked at every step, so an
error is raised at the step that causes it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from headrace.dsl.expression import to_expression
from headrace.dsl.select import Select
from headrace.dsl.statement import DslStatement, ExpressionLike, FromItem, JoinClause, JoinCondition
from headrace.dsl.windows import WindowSpec
from headrace.errors import SqlError
from headrace.sql.parser import quote_identifier

_WINDOW_BOUNDS = ("window_start", "window_end")
_RESULT_WINDOW_BOUNDS = ("window.start AS window_start", "window.end AS window_end")  # rows may have columns with these names
_SLIDING = "SLIDING"


@dataclass(frozen=True, slots=True, repr=False)
class StreamFlow:
    """A sequence of steps over rows, from `hr.stream` or `Session.stream`. All steps raise SqlError if they are not possible.

    Fields, for internal use: `body` reads the rows and has no outputs yet. It has one source, perhaps with a window that no
    step has used yet; or several joined sources, each in its window. A selection or aggregation becomes a source itself.
    `of_results` is set if the rows are, or may be joined with, results of windows; `of_groups` directly after an aggregation. A
    flow of a session has `taker`, which adds a query to the session, and perhaps `check`, which checks the SQL after each step.
    """

    body: DslStatement
    of_results: bool = False
    of_groups: bool = False
    taker: Callable[..., Any] | None = field(default=None, compare=False)
    check: Callable[[str], object] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the rows in columns and joins: the alias, or the stream's name; empty for joined rows."""
        return "" if self._single_item is None else self._single_item.name

    @property
    def statement(self) -> DslStatement:
        """The statement that `sql` renders, for internal use."""
        if self._open_window is not None:
            raise SqlError("a flow in windows is not a query yet", hint="call agg(…) or join(…) after window(…)")
        return self._unwindowed_query

    @property
    def sql(self) -> str:
        """The SQL text; raises SqlError after `window`, until `agg` or `join` follows."""
        return self.statement.sql

    def filter(self, *conditions: ExpressionLike) -> StreamFlow:
        """Keep the rows that fulfil all conditions: SQL texts or expressions."""
        return self._with_body(self.body.append(conditions=_list_expressions(conditions)))

    def select(self, *outputs: Any, **named: Any) -> StreamFlow:
        """Select these columns only: names, SQL texts or expressions; a keyword gives its column that name."""
        if not outputs and not named:
            raise SqlError(
                "select needs at least one column", hint='name columns, select("price"), or select(double="price * 2")'
            )
        return self._select_columns(_output_columns(outputs, named))

    def map(self, **named: Any) -> StreamFlow:
        """Add computed columns, which may call registered functions: `map(gross=vat("price"))`."""
        if not named:
            raise SqlError("map needs a column to add", hint='write map(double=hr.col("price") * 2)')
        return self._select_columns(("*", *_output_columns((), named)))

    def flat_map(self, **named: Any) -> StreamFlow:
        """Unnest a list that a registered function returns, one row for each element: `flat_map(word=words("text"))`."""
        if len(named) != 1:
            raise SqlError("flat_map needs one list", hint='write flat_map(word=words("text"))')
        if self._single_item is None:
            raise SqlError("flat_map is not supported after join", hint="call flat_map before join")
        ((name, lists),) = named.items()
        return self._with_body(self.body.explode(to_expression(lists), name))

    def alias(self, name: str) -> StreamFlow:
        """Give the rows another name for the following steps; a stream that is joined with itself needs two names."""
        if self._single_item is None:
            raise SqlError("joined rows cannot have an alias", hint="call select(…) first")
        origin = replace(self._single_item, alias=name)
        return self._with_body(replace(self.body, from_items=(origin,)), of_groups=self.of_groups)

    def window(self, window: WindowSpec) -> StreamFlow:
        """Assign the rows to windows: `hr.tumble`, `hr.hop` or `hr.session_window`; or `hr.sliding`, for joins."""
        if not isinstance(window, WindowSpec):
            raise SqlError(f"{window!r} is not a window", hint='write window(hr.tumble("8 seconds"))')
        if self._single_item is None:
            raise SqlError("joined rows are in windows already", hint="call select(…) first to put results into other windows")
        if self._single_item.window is not None:
            raise SqlError(
                "a window over a window is not supported",
                detail=f"the flow is in {self._single_item.window}",
                hint="aggregate first",
            )
        return self._with_body(replace(self.body, from_items=(replace(self._single_item, window=window),)))

    def group_by(self, *keys: ExpressionLike, **named: Any) -> GroupedFlow:
        """Group the rows of each window by columns or expressions; a keyword gives its key that name. Call `agg` next."""
        return GroupedFlow(self).group_by(*keys, **named)

    def agg(self, *outputs: Any, **named: Any) -> StreamFlow:
        """Aggregate all rows of a window: `agg(revenue=hr.sum("price"))`."""
        return GroupedFlow(self).agg(*outputs, **named)

    def having(self, *conditions: ExpressionLike) -> StreamFlow:
        """Keep the groups that fulfil all conditions, over outputs or aggregates; allowed directly after `agg`."""
        query = self._unwindowed_query
        if not self.of_groups:
            raise SqlError("having needs an aggregation before it", hint="call it after agg(…), or use filter(…)")
        kept = query.append(group_conditions=_list_expressions(conditions))
        return self._with_body(_select_from(kept, None, self.name), of_groups=True)

    def join(self, other: StreamFlow, on: JoinCondition, *, how: str = "inner") -> StreamFlow:
        """Join the rows with those of another flow, both in windows.

        `on` names columns that both sides have, or is a condition, in which columns are `hr.col("name.column")` with the name or
        alias of a flow. `how` is inner, left, right, full, semi or anti. Windows that end at the same time are joined; in SLIDING
        windows, rows whose event times lie within the range.
        """
        self._check_join(other, how)
        first = self.body if self._single_item is None else DslStatement(from_items=(self._join_side(),))
        body = first.append(joins=[JoinClause.create(other._join_side(), on, how)])
        return self._with_body(body, of_results=self.of_results or other.of_results)

    def add(self, name: str | None = None, **options: Any) -> Any:
        """Add the query to the session of the flow; options, result and errors are those of the session's `add`."""
        if self.taker is None:
            raise SqlError("this flow belongs to no session", hint="begin with session.stream(…), or call session.add(flow)")
        return self.taker(self.sql, name=name, **options)

    @property
    def _single_item(self) -> FromItem | None:
        """The source of the rows; None for joined rows."""
        return None if self.body.joins else self.body.from_items[0]

    @property
    def _open_window(self) -> WindowSpec | None:
        """The window that no step has used yet."""
        return None if self._single_item is None else self._single_item.window

    @property
    def _unwindowed_query(self) -> DslStatement:
        """The query without its window; if the body adds nothing to a sub-query, the sub-query itself."""
        origin = self._single_item
        if origin is None:
            return self.body
        if isinstance(origin.source, DslStatement) and not self.body.conditions and not self.body.views:
            return origin.source
        return replace(self.body, from_items=(replace(origin, window=None),))

    def _with_body(self, body: DslStatement, *, of_results: bool | None = None, of_groups: bool = False) -> StreamFlow:
        """Return the flow after a step; raises SqlError if the check of the session fails."""
        flow = replace(self, body=body, of_groups=of_groups, of_results=self.of_results if of_results is None else of_results)
        if self.check is not None:
            query = flow._unwindowed_query  # noqa: SLF001
            self.check((query if query.outputs else query.append(outputs=["1 AS checked"])).sql)
        return flow

    def _select_columns(self, outputs: Iterable[str]) -> StreamFlow:
        """Return the flow with these outputs, in the same window."""
        origin = self._single_item
        rows = self.body if origin is None else replace(self.body, from_items=(replace(origin, window=None),))
        body = _select_from(rows.append(outputs=outputs), self._open_window, self.name)
        return self._with_body(body, of_results=self.of_results or origin is None)

    def _join_side(self) -> FromItem:
        """Return the flow as a source of a join; filters apply before the join."""
        assert self._single_item is not None
        changed = self.body.conditions or self.body.views
        return FromItem(self._unwindowed_query, self._open_window, self.name or None) if changed else self._single_item

    def _check_join(self, other: StreamFlow, how: str) -> None:
        if not isinstance(other, StreamFlow):
            raise SqlError(f"join needs a flow, not {other!r}", hint='join with another flow: hr.stream("ads").window(…)')
        if other._single_item is None:
            raise SqlError(
                "the other side of a join is a join itself", hint="join the flows one by one, or call select(…) on it first"
            )
        if self._single_item is None and self.body.conditions and how in ("right", "full"):
            raise SqlError(f"joined rows cannot be filtered before a {how} join", hint="filter the flows before they are joined")
        for side in (self, other):
            if side._single_item is not None and side._single_item.window is None and not side.of_results:  # noqa: SLF001
                raise SqlError(
                    f"a join needs windows, and '{side.name}' has none", hint='call window(hr.tumble("8 seconds")) before join'
                )
        left, right = _window_functions(self.body), _window_functions(other.body)
        if (_SLIDING in left) != (_SLIDING in right):
            raise SqlError("either all sides of a join are in SLIDING windows, or none is", detail=_describe_sides(left, right))
        names = {item.name.lower() for item in self.body.items}
        if other.name and other.name.lower() in names:
            raise SqlError(f"two sides of the join have the name '{other.name}'", hint='give one an alias: flow.alias("other")')

    def __repr__(self) -> str:
        """Return the SQL text and the window of the rows."""
        return f"<StreamFlow{self._window_suffix}: {self._unwindowed_query.sql}>"

    def _repr_html_(self) -> str:
        """Return the SQL text as HTML, for notebooks."""
        return f"<pre>{html.escape(self._unwindowed_query.sql + self._window_suffix)}</pre>"

    @property
    def _window_suffix(self) -> str:
        return "" if self._open_window is None else f" in {self._open_window}"


@dataclass(frozen=True, slots=True)
class GroupedFlow:
    """Grouped rows, from `StreamFlow.group_by`: the keys as SQL, each with the name of its output column or None."""

    flow: StreamFlow
    keys: tuple[tuple[str, str | None], ...] = ()

    def group_by(self, *keys: ExpressionLike, **named: Any) -> GroupedFlow:
        """Add keys: columns or expressions; a keyword gives its key that name."""
        unnamed = [(to_expression(key).sql, None) for key in keys]
        return replace(self, keys=(*self.keys, *unnamed, *((to_expression(key).sql, name) for name, key in named.items())))

    def agg(self, *outputs: Any, **named: Any) -> StreamFlow:
        """Return a flow with a row for each group and window: the window bounds, the keys, and these aggregates.

        Rows that are results of windows need no window of their own: they are grouped within the windows that emitted them.
        Raises SqlError without an aggregate or a window, and for SLIDING windows.
        """
        flow = self.flow
        self._check_aggregation(flow, outputs or named)
        keys = [text if name is None else f"{text} AS {quote_identifier(name)}" for text, name in self.keys]
        bounds = _RESULT_WINDOW_BOUNDS if flow.of_results else _WINDOW_BOUNDS
        query = flow.body.append(outputs=(*bounds, *keys, *_output_columns(outputs, named)), keys=[text for text, _ in self.keys])
        return flow._with_body(_select_from(query, None, flow.name), of_results=True, of_groups=True)  # noqa: SLF001

    def _check_aggregation(self, flow: StreamFlow, outputs: object) -> None:
        if not outputs and not self.keys:
            raise SqlError("agg needs an aggregate", hint='write agg(revenue=hr.sum("price"))')
        if _SLIDING in _window_functions(flow.body):
            raise SqlError("rows in SLIDING windows cannot be aggregated", hint="use hr.tumble or hr.hop")
        if flow._single_item is not None and flow._single_item.window is None and not flow.of_results:  # noqa: SLF001
            raise SqlError(
                "an aggregation over a stream needs a window", hint='call window(hr.tumble("8 seconds")) before group_by and agg'
            )

    def __getattr__(self, name: str) -> Any:
        """Raise SqlError for the other steps of a flow: grouped rows must be aggregated first."""
        if hasattr(StreamFlow, name) and not name.startswith("_"):
            raise SqlError(f"grouped rows have no '{name}'", hint="aggregate each group with agg(…) first")
        raise AttributeError(f"'GroupedFlow' has no attribute '{name}'")


def stream(name: str) -> StreamFlow:
    """Return a flow of the rows of a stream, for any session that has the stream: pass it to `Session.add`.

    It belongs to no session, so its steps are checked only when it is added.
    """
    return StreamFlow(_select_from(name, None, ""))


def create_flow(name: str, taker: Callable[..., Any], check: Callable[[str], object] | None = None) -> StreamFlow:
    """Return a flow of the rows of a session's stream; raises SqlError if the stream is unknown."""
    flow = replace(stream(name), taker=taker, check=check)
    return flow._with_body(flow.body)  # noqa: SLF001


def _select_from(source: str | DslStatement, window: WindowSpec | None, name: str) -> DslStatement:
    return DslStatement(from_items=(FromItem(source, window, name or None),))


def _output_columns(outputs: Iterable[Any], named: dict[str, Any]) -> tuple[str, ...]:
    return (
        *_list_expressions(outputs),
        *(f"{to_expression(value).sql} AS {quote_identifier(name)}" for name, value in named.items()),
    )


def _list_expressions(values: Iterable[Any]) -> list[str]:
    return [to_expression(value).sql for value in values]


def _window_functions(body: DslStatement) -> list[str]:
    return [item.window.function for item in body.items if item.window is not None]


def _describe_sides(left: Iterable[str], right: Iterable[str]) -> str:
    return f"on the left {', '.join(left) or 'results'}; on the right {', '.join(right) or 'results'}"


QueryText: TypeAlias = str | Select | StreamFlow
"""A query as users pass it: SQL text, or a query of the DSL, which is translated to SQL."""


def sql_of(query: QueryText) -> str:
    """Return the SQL text of a query."""
    return query if isinstance(query, str) else query.sql
