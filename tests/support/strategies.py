"""Random scenarios: streams, and steps (queries, rows, micro-batches, crashes) until the streams are drained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st

from headrace.model.stream import Stream
from support.queries import queries
from support.rows import RowCode, decode, row_codes, streams


@dataclass(frozen=True, slots=True)
class AddQuery:
    """Add a query under a name that no live query has."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class RemoveQuery:
    """Remove a live query."""

    name: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Append rows to a stream; the next `Advance` reads them."""

    stream: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """Run one micro-batch over all rows appended since the last one."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Fail at a point (0 to 9, interpreted by the harness) of the next `Advance`, then recover and repeat it."""

    point: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Close all windows; always the last step, after an `Advance`."""


Step: TypeAlias = AddQuery | RemoveQuery | Rows | Advance | Crash | Drain


@dataclass(frozen=True, slots=True)
class Scenario:
    """Streams and valid steps: names are unique among live queries, only live queries are removed, `Drain` is last."""

    streams: tuple[Stream, ...]
    steps: tuple[Step, ...]

    @property
    def queries(self) -> dict[str, str]:
        """All queries ever added, name → SQL; the last one if a name was used again."""
        return {step.name: step.sql for step in self.steps if isinstance(step, AddQuery)}


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """The drawn changes and rows of one micro-batch; a removal is an index into the live queries, modulo their number."""

    removals: tuple[int, ...]
    additions: tuple[str, ...]
    arrivals: tuple[tuple[RowCode, ...], tuple[RowCode, ...]]
    crash: int | None


def scenarios(
    max_queries: int = 60,
    *,
    max_batches: int = 12,
    crashes: bool = True,
    texts: st.SearchStrategy[str] | None = None,
    special: bool = True,
) -> st.SearchStrategy[Scenario]:
    """Draw a scenario; `texts` draws the queries, `special` is that of `row_codes`."""
    chosen = queries() if texts is None else texts
    row = row_codes(special=special)
    few = st.lists(row, max_size=4)
    rounds = st.builds(
        _BatchPlan,
        _tuples(st.lists(st.integers(0, 20), max_size=2)),
        _tuples(st.lists(chosen, max_size=max(1, max_queries // 10))),
        st.tuples(_tuples(few | st.lists(row, min_size=8, max_size=20)), _tuples(few)),
        st.none() | st.integers(0, 9) if crashes else st.none(),
    )
    first = st.lists(chosen, min_size=1, max_size=max_queries)
    return st.builds(_build_scenario, streams(), first, st.lists(rounds, max_size=max_batches), st.just(max_queries))


def _tuples(lists: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[tuple[Any, ...]]:
    return lists.map(tuple)


def _build_scenario(declared: tuple[Stream, ...], first: list[str], rounds: Sequence[_BatchPlan], max_queries: int) -> Scenario:
    opening = _BatchPlan((), tuple(first), ((), ()), None)
    return Scenario(declared, (*_steps(declared, [opening, *rounds], max_queries), Advance(), Drain()))


def _steps(declared: tuple[Stream, ...], rounds: Iterable[_BatchPlan], max_queries: int) -> Iterator[Step]:
    """Turn drawn changes into valid steps; drop those without effect."""
    live: list[str] = []
    added, clocks = 0, [0, 0]
    for index, plan in enumerate(rounds):
        for position in plan.removals:
            if live:
                yield RemoveQuery(live.pop(position % len(live)))
        for sql in plan.additions[: max_queries - added]:
            live.append(f"q{added}")
            added += 1
            yield AddQuery(live[-1], sql)
        for side, codes in enumerate(plan.arrivals):
            rows, clocks[side] = decode(codes, clocks[side])
            if rows:
                yield Rows(declared[side].name, tuple(rows))
        if plan.crash is not None:
            yield Crash(plan.crash)
        if index:
            yield Advance()
