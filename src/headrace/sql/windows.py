"""Parses durations, and windows in both notations: in FROM and in GROUP BY.

`TUMBLE(stream, size)`, `HOP(stream, size, slide)` and `SESSION(stream, gap)` in FROM give the same `Window` values as
`window(time, size[, slide[, '0 seconds']])` and `session_window(time, gap)` in GROUP BY. `SLIDING(stream, range)` is for joins
only.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.time import DurationError, parse_duration
from headrace.model.window import UNBOUNDED_LENGTH, HopWindow, SessionWindow, SlidingWindow, Window
from headrace.sql.limits import check_window_limits

_DAY_UNITS = frozenset({"day", "days", "week", "weeks"})


@dataclass(frozen=True, slots=True)
class Interval:
    """A signed duration in microseconds; `days_only` if the query gives it in days or weeks."""

    micros: int
    days_only: bool


def parse_interval(node: exp.Expr) -> Interval | None:
    """Return the value of an INTERVAL, or of a sum of INTERVALs; None for any other node."""
    if isinstance(node, exp.Paren):
        return parse_interval(node.this)
    if isinstance(node, exp.Add):
        left, right = parse_interval(node.this), parse_interval(node.expression)
        return Interval(left.micros + right.micros, left.days_only and right.days_only) if left and right else None
    if isinstance(node, exp.Neg):
        inner = parse_interval(node.this)
        return inner and Interval(-inner.micros, inner.days_only)
    return _parse_single_interval(node) if isinstance(node, exp.Interval) else None


def _parse_single_interval(node: exp.Interval) -> Interval:
    unit = node.args.get("unit")
    if isinstance(unit, exp.IntervalSpan) or node.this is None:
        raise SqlError("invalid interval", hint="write INTERVAL 8 SECONDS, or INTERVAL '1 minute 30 seconds'")
    name = unit.name if unit is not None else ""
    amount = f"-{node.this.name}" if isinstance(node.this, exp.Neg) else str(node.this.name)
    sign, amount = (-1, amount[1:]) if amount.startswith("-") else (1, amount)
    return Interval(sign * _parse_duration(f"{amount} {name}"), name.lower() in _DAY_UNITS)


def _parse_duration(text: str) -> int:
    try:
        micros = parse_duration(text)
    except DurationError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from None
    if micros > UNBOUNDED_LENGTH:
        raise SqlError(f"duration '{text.strip()}' is too long", hint="lengths up to a hundred years are possible")
    return micros


def parse_window_length(node: exp.Expr) -> int:
    """Return the length of a window, a string or an INTERVAL, in microseconds."""
    if isinstance(node, exp.Literal) and node.is_string:
        return _parse_duration(node.name)
    parsed = parse_interval(node)
    if parsed is None:
        raise SqlError("the length of a window must be a constant", hint="write '8 seconds' or INTERVAL 8 SECONDS")
    return parsed.micros


def parse_window(name: str, arguments: list[exp.Expr]) -> Window:
    """Return the window of a call, in either notation; `arguments` follow the stream or the time column."""
    kind = name.lower()
    min_args, max_args, usage = _WINDOW_USAGE[kind]
    if not min_args <= len(arguments) <= max_args:
        raise SqlError(f"window '{name}' has the wrong number of arguments", hint=f"write {usage}")
    lengths = [parse_window_length(argument) for argument in arguments]
    if any(value <= 0 for value in lengths[:2]):
        raise SqlError(f"window '{name}' needs lengths greater than zero")
    if kind in ("session", "session_window"):
        return SessionWindow(lengths[0])
    if any(lengths[2:]):
        raise SqlError("windows are aligned to 1970-01-01T00:00Z; another start time is not supported", hint="leave it out")
    window = HopWindow(lengths[0], lengths[1] if len(lengths) > 1 else lengths[0])
    check_window_limits(window)
    return window


def parse_sliding_window(arguments: list[exp.Expr]) -> SlidingWindow:
    """Return the window of SLIDING(stream, range[, lateness]); `arguments` follow the stream; a range may be UNBOUNDED."""
    if not 1 <= len(arguments) <= 2:
        raise SqlError(
            "window 'SLIDING' has the wrong number of arguments",
            hint="write SLIDING(stream, '8 seconds'[, '1 second']): range, lateness",
        )
    first = UNBOUNDED_LENGTH if _is_unbounded(arguments[0]) else parse_window_length(arguments[0])
    lengths = [first, *map(parse_window_length, arguments[1:])]
    if any(value < 0 for value in lengths):
        raise SqlError("window 'SLIDING' needs lengths that are not negative")
    return SlidingWindow(*lengths)


def _is_unbounded(node: exp.Expr) -> bool:
    """Return whether the range of a sliding window is UNBOUNDED, as a word or as a string."""
    is_word = isinstance(node, exp.Column) and not node.table
    return (is_word or (isinstance(node, exp.Literal) and node.is_string)) and node.name.upper() == "UNBOUNDED"


_WINDOW_USAGE = {
    "tumble": (1, 1, "TUMBLE(stream, '8 seconds')"),
    "hop": (2, 2, "HOP(stream, '8 seconds', '4 seconds'): size, then slide"),
    "session": (1, 1, "SESSION(stream, '8 seconds')"),
    "window": (1, 3, "window(time, '8 seconds'[, '4 seconds'])"),
    "session_window": (1, 1, "session_window(time, '8 seconds')"),
}
TABLE_WINDOW_FUNCTIONS = frozenset({"tumble", "hop", "session"})
GROUP_WINDOW_FUNCTIONS = frozenset({"window", "session_window"})
