"""Windows of the DSL, for sources of the Select builder and for `StreamFlow.window`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from headrace.dsl.expression import literal
from headrace.errors import SqlError
from headrace.model.time import DurationError, parse_duration

WindowLength = str | timedelta
UNBOUNDED = "UNBOUNDED"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window over a stream: the name of the SQL window function, and its lengths."""

    function: str
    lengths: tuple[WindowLength, ...]

    def __post_init__(self) -> None:
        """Raise SqlError for an invalid length."""
        for number, length in enumerate(self.lengths):
            if not (self.function == "SLIDING" and number == 0 and str(length).upper() == UNBOUNDED):
                _check_length(length)

    def to_sql(self, source: str) -> str:
        """Return the SQL of the window function applied to a source."""
        return f"{self.function}({', '.join([source, *(literal(length).sql for length in self.lengths)])})"

    def __str__(self) -> str:
        """Return the function with its lengths, for messages."""
        return f"{self.function}({', '.join(map(str, self.lengths))})"


def _check_length(length: WindowLength) -> None:
    if isinstance(length, timedelta):
        return
    if not isinstance(length, str):
        raise SqlError(f"invalid window length {length!r}", hint="write '8 seconds', or give a timedelta")
    try:
        parse_duration(length)
    except DurationError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from None


def tumble(size: WindowLength) -> WindowSpec:
    """Return tumbling windows of length `size`; lengths are texts such as '5 seconds', or timedeltas.

    Raises SqlError for an invalid length.
    """
    return WindowSpec("TUMBLE", (size,))


def hop(size: WindowLength, slide: WindowLength) -> WindowSpec:
    """Return hopping windows of length `size` that start every `slide`; raises SqlError for an invalid length."""
    return WindowSpec("HOP", (size, slide))


def session_window(gap: WindowLength) -> WindowSpec:
    """Return session windows: for each key, a window ends when no row arrives for longer than `gap` in event time.

    Raises SqlError for an invalid length.
    """
    return WindowSpec("SESSION", (gap,))


def sliding(range: WindowLength, lateness: WindowLength | None = None) -> WindowSpec:  # noqa: A002  SQL calls it so
    """Return sliding windows for joins: a row can be joined for `range` from its event time on.

    With the range "unbounded" it can be joined for ever. Rows that are later than `lateness` are dropped. Raises SqlError for an
    invalid length.
    """
    return WindowSpec("SLIDING", (range,) if lateness is None else (range, lateness))
