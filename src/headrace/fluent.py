"""Flows: what happens to the rows of a stream, one step after the other.

    revenue = (
        hr.stream("purchases")
        .filter(hr.col("price") > 10)
        .window(hr.hop("8 seconds", "4 seconds"))
        .group_by("gem_pack")
        .agg(revenue=hr.sum("price"))
    )
    session.add(revenue, name="revenue")

A flow is a value: each step gives a new one, and a flow may go on in several ways. It is a query of `headrace.builder`, and so
comes to SQL text (`flow.sql`): it is shared, kept and checked like any other query. Unlike there, order counts: a step sees the
rows that the steps before it made.

A text that is a name stands for a column, any other text for SQL. A flow made by `Session.stream` is checked at every step,
so that what is wrong is raised where it was written.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.builder import On, Origin, Select, Windowing, Written
from headrace.builder_expression import written
from headrace.errors import SqlError
from headrace.sql.quoting import identifier

_BOUNDS = ("window_start", "window_end")
_BOUNDS_OVER_RESULTS = ("window.start AS window_start", "window.end AS window_end")  # results may have columns of these names
_SLIDING = "SLIDING"


@dataclass(frozen=True, slots=True, repr=False)
class StreamFlow:
    """Rows on their way: `body` reads them and has no outputs yet.

    One origin, which may have a window that was not used yet; or several that are joined, each in a window that was. What was
    selected or aggregated is an origin itself. `of_results` says that rows are, or may be joined with, results of windows;
    `of_groups` that nothing was done after the aggregation. A flow of a session has `taker`, by which queries are added to it; it
    may have `check`, which is shown the text after each step and raises what is wrong with it.
    """

    body: Select
    of_results: bool = False
    of_groups: bool = False
    taker: Callable[..., Any] | None = field(default=None, compare=False)
    check: Callable[[str], object] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What columns and joins know the rows by: an alias, or the stream's name; empty for joined rows."""
        origin = self._origin
        return "" if origin is None else origin.alias or (origin.of if isinstance(origin.of, str) else "")

    @property
    def sql(self) -> str:
        """The text; raises SqlError while there is a window that nothing was done in."""
        if self._window is not None:
            raise SqlError("a flow in windows is not a query yet", hint="call agg(…) or join(…) after window(…)")
        return self._query.sql

    def filter(self, *conditions: Written) -> StreamFlow:
        """Keep the rows for which all conditions hold."""
        return self._next(replace(self.body, conditions=_and(self.body.conditions, conditions)))

    def select(self, *outputs: Any, **named: Any) -> StreamFlow:
        """Go on with these columns and no others: names, SQL, or expressions, which `name=` gives a name."""
        if not outputs and not named:
            raise SqlError(
                "select needs something to select", hint='name columns, select("price"), or select(double="price * 2")'
            )
        return self._closed(_outputs(outputs, named))

    def map(self, **named: Any) -> StreamFlow:
        """Add columns that are computed from the others, by registered functions too: `map(gross=vat("price"))`."""
        if not named:
            raise SqlError("map needs a column to add", hint='write map(double=hr.col("price") * 2)')
        return self._closed(("*", *_outputs((), named)))

    def flat_map(self, **named: Any) -> StreamFlow:
        """Make a row for each element of a list that a registered function returns: `flat_map(word=words("text"))`."""
        if len(named) != 1:
            raise SqlError("flat_map needs one list", hint='write flat_map(word=words("text"))')
        if self._origin is None:
            raise SqlError("joined rows cannot be unfolded", hint="call flat_map before join")
        ((name, lists),) = named.items()
        return self._next(self.body.explode(written(lists), name))

    def alias(self, name: str) -> StreamFlow:
        """Go by another name from here on; a stream that is joined with itself needs two."""
        if self._origin is None:
            raise SqlError("joined rows have no name of their own", hint="select(…) from them first")
        origin = replace(self._origin, alias=name)
        return self._next(replace(self.body, origins=(origin,)), of_groups=self.of_groups)

    def window(self, window: Windowing) -> StreamFlow:
        """Put rows into windows: `hr.tumble`, `hr.hop`, `hr.session_window`; `hr.sliding` for joins."""
        if not isinstance(window, Windowing):
            raise SqlError(f"{window!r} is not a window", hint='write window(hr.tumble("8 seconds"))')
        if self._origin is None:
            raise SqlError("joined rows are in windows already", hint="select(…) from them first to put results into others")
        if self._origin.window is not None:
            raise SqlError(
                "a window over a window is not supported",
                detail=f"there is {_shown(self._origin.window)}",
                hint="aggregate first",
            )
        return self._next(replace(self.body, origins=(replace(self._origin, window=window),)))

    def group_by(self, *keys: Written, **named: Any) -> GroupedFlow:
        """Group rows of a window by columns or expressions, which `name=` gives a name; `agg` says what of each group."""
        return GroupedFlow(self).group_by(*keys, **named)

    def agg(self, *outputs: Any, **named: Any) -> StreamFlow:
        """Aggregate all rows of a window: `agg(revenue=hr.sum("price"))`."""
        return GroupedFlow(self).agg(*outputs, **named)

    def having(self, *conditions: Written) -> StreamFlow:
        """Keep only groups for which all conditions hold, over outputs or aggregates; directly after `agg`."""
        query = self._query
        if not self.of_groups:
            raise SqlError("having needs an aggregation before it", hint="call it after agg(…), or use filter(…)")
        kept = replace(query, group_conditions=_and(query.group_conditions, conditions))
        return self._next(_reading(kept, None, self.name), of_groups=True)

    def join(self, other: StreamFlow, on: On, *, how: str = "inner") -> StreamFlow:
        """Join rows with those of another flow, both in windows: `on` names columns that both have, or is a condition.

        Windows belong together that end at the same time; in SLIDING windows, rows that are not too far apart. Columns go by
        `hr.col("name.column")`, where `name` is that of the flow, or its alias. `how` is inner, left, right, full, semi or anti.
        """
        self._check_partner(other, how)
        side = other._side()
        first = self.body if self._origin is None else Select(origins=(self._side(),))
        body = first.join(side.of, side.window, on=on, how=how, alias=side.alias)
        return self._next(body, of_results=self.of_results or other.of_results)

    def add(self, name: str | None = None, **options: Any) -> Any:
        """Add the query to the session that the flow is from; options and result are those of its `add`."""
        if self.taker is None:
            raise SqlError("this flow belongs to no session", hint="begin with session.stream(…), or call session.add(flow)")
        return self.taker(self.sql, name=name, **options)

    @property
    def _origin(self) -> Origin | None:
        """What is read, if it is one thing."""
        return None if self.body.partners else self.body.origins[0]

    @property
    def _window(self) -> Windowing | None:
        """The window that nothing was done in yet."""
        return None if self._origin is None else self._origin.window

    @property
    def _query(self) -> Select:
        """The query without its window: where nothing was done to the rows of another, that one."""
        origin = self._origin
        if origin is None:
            return self.body
        if isinstance(origin.of, Select) and not self.body.conditions and not self.body.views:
            return origin.of
        return replace(self.body, origins=(replace(origin, window=None),))

    def _next(self, body: Select, *, of_results: bool | None = None, of_groups: bool = False) -> StreamFlow:
        """Return the flow after a step, if all is well with it."""
        found = replace(self, body=body, of_groups=of_groups, of_results=self.of_results if of_results is None else of_results)
        if self.check is not None:
            query = found._query  # noqa: SLF001
            self.check((query if query.outputs else query.select("1 AS checked")).sql)
        return found

    def _closed(self, outputs: Iterable[str]) -> StreamFlow:
        """Return the flow of these outputs, in the same window."""
        origin = self._origin
        rows = self.body if origin is None else replace(self.body, origins=(replace(origin, window=None),))
        body = _reading(rows.select(*outputs), self._window, self.name)
        return self._next(body, of_results=self.of_results or origin is None)

    def _side(self) -> Origin:
        """Return what a join reads of this flow, filtered before it is joined."""
        assert self._origin is not None
        changed = self.body.conditions or self.body.views
        return Origin(self._query, self._window, self.name or None) if changed else self._origin

    def _check_partner(self, other: StreamFlow, how: str) -> None:
        if not isinstance(other, StreamFlow):
            raise SqlError(f"{other!r} cannot be joined with", hint='join with another flow: hr.stream("ads").window(…)')
        if other._origin is None:
            raise SqlError(
                "the other side of a join is a join itself", hint="join one after the other, or select(…) from it first"
            )
        if self._origin is None and self.body.conditions and how in ("right", "full"):
            raise SqlError(f"joined rows cannot be filtered before a {how} join", hint="filter the flows before they are joined")
        for side in (self, other):
            if side._origin is not None and side._origin.window is None and not side.of_results:  # noqa: SLF001
                raise SqlError(
                    f"a join needs windows, and '{side.name}' has none", hint='call window(hr.tumble("8 seconds")) before join'
                )
        mine, theirs = _windows(self.body), _windows(other.body)
        if (_SLIDING in mine) != (_SLIDING in theirs):
            raise SqlError("either all sides of a join are in SLIDING windows, or none is", detail=_sides(mine, theirs))
        taken = {(one.alias or str(one.of)).lower() for one in _origins(self.body)}
        if other.name and other.name.lower() in taken:
            raise SqlError(f"two sides of the join go by the name '{other.name}'", hint='give one an alias: flow.alias("other")')

    def __repr__(self) -> str:
        """Return the text, and the window that rows are in."""
        return f"<StreamFlow{self._in_window}: {self._query.sql}>"

    def _repr_html_(self) -> str:
        """Return the text for a notebook."""
        return f"<pre>{html.escape(self._query.sql + self._in_window)}</pre>"

    @property
    def _in_window(self) -> str:
        return "" if self._window is None else f" in {_shown(self._window)}"


@dataclass(frozen=True, slots=True)
class GroupedFlow:
    """Rows in groups: keys as SQL, and the names that outputs have of them."""

    flow: StreamFlow
    keys: tuple[tuple[str, str | None], ...] = ()

    def group_by(self, *keys: Written, **named: Any) -> GroupedFlow:
        """Group by these, too."""
        found = [(written(key).sql, None) for key in keys]
        return replace(self, keys=(*self.keys, *found, *((written(key).sql, name) for name, key in named.items())))

    def agg(self, *outputs: Any, **named: Any) -> StreamFlow:
        """Return a row for each group and window: its bounds, the keys, and these aggregates.

        Rows that are results of windows need no window of their own: they are then grouped in those they are results of.
        """
        flow = self.flow
        self._check(flow, outputs or named)
        keys = [text if name is None else f"{text} AS {identifier(name)}" for text, name in self.keys]
        bounds = _BOUNDS_OVER_RESULTS if flow.of_results else _BOUNDS
        query = flow.body.select(*bounds, *keys, *_outputs(outputs, named))
        if self.keys:
            query = query.group_by(", ".join(text for text, _ in self.keys))
        return flow._next(_reading(query, None, flow.name), of_results=True, of_groups=True)  # noqa: SLF001

    def _check(self, flow: StreamFlow, outputs: object) -> None:
        if not outputs and not self.keys:
            raise SqlError("agg needs an aggregate", hint='write agg(revenue=hr.sum("price"))')
        if _SLIDING in _windows(flow.body):
            raise SqlError("rows in SLIDING windows cannot be aggregated", hint="use hr.tumble or hr.hop")
        if flow._origin is not None and flow._origin.window is None and not flow.of_results:  # noqa: SLF001
            raise SqlError(
                "an aggregation over a stream needs a window", hint='call window(hr.tumble("8 seconds")) before group_by and agg'
            )

    def __getattr__(self, name: str) -> Any:
        """Refuse everything else: groups are no rows."""
        if hasattr(StreamFlow, name) and not name.startswith("_"):
            raise SqlError(f"rows in groups have no '{name}'", hint="say what of each group with agg(…)")
        raise AttributeError(f"'GroupedFlow' has no attribute '{name}'")


def stream(name: str) -> StreamFlow:
    """Return the rows of a stream; the flow belongs to no session, and can be added to any that has the stream."""
    return StreamFlow(_reading(name, None, ""))


def stream_of(name: str, taker: Callable[..., Any], check: Callable[[str], object] | None = None) -> StreamFlow:
    """Return the rows of a session's stream."""
    begun = replace(stream(name), taker=taker, check=check)
    return begun._next(begun.body)  # noqa: SLF001


def _reading(source: str | Select, window: Windowing | None, name: str) -> Select:
    return Select(origins=(Origin(source, window, name or None),))


def _outputs(outputs: Iterable[Any], named: dict[str, Any]) -> tuple[str, ...]:
    return (*(written(one).sql for one in outputs), *(f"{written(one).sql} AS {identifier(name)}" for name, one in named.items()))


def _and(before: tuple[str, ...], conditions: Iterable[Written]) -> tuple[str, ...]:
    """Return conditions as one, in their order."""
    found = [*before, *(f"({written(one).sql})" for one in conditions)]
    return (" AND ".join(found),) if found else ()


def _origins(body: Select) -> list[Origin]:
    return [*body.origins, *(one.origin for one in body.partners)]


def _windows(body: Select) -> list[str]:
    return [one.window.function for one in _origins(body) if one.window is not None]


def _sides(mine: Iterable[str], theirs: Iterable[str]) -> str:
    return f"on the left {', '.join(mine) or 'results'}; on the right {', '.join(theirs) or 'results'}"


def _shown(window: Windowing) -> str:
    return f"{window.function}({', '.join(map(str, window.lengths))})"
