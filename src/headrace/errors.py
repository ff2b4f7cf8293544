"""Every error headrace raises on purpose, under one root.

An error has up to four parts, in the order a reader needs them: the primary line (what kind of thing, quoted), the
place (for SQL: the line with a caret), the detail (what exists instead) and the hint (what to do).
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Root of all errors that are the user's to act on; `str()` gives all parts, one a line."""

    def __init__(self, message: str, *, place: str = "", detail: str = "", hint: str = "") -> None:
        """`message` names the kind of thing and quotes it; the other parts may be empty."""
        self.message, self.place, self.detail, self.hint = message, place, detail, hint
        parts = [message]
        if place:
            parts.append(place)
        if detail:
            parts.append(f"detail: {detail}")
        if hint:
            parts.append(f"hint: {hint}")
        super().__init__("\n".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process boundaries (Spark workers), so they must pickle with all their parts."""
        return (_rebuild, (type(self), self.message, self.place, self.detail, self.hint))


def _rebuild(kind: type[HeadraceError], message: str, place: str, detail: str, hint: str) -> HeadraceError:
    return kind(message, place=place, detail=detail, hint=hint)


class SqlError(HeadraceError):
    """A query that cannot be parsed, bound or supported; refused when added, nothing else is touched."""


class SchemaError(HeadraceError):
    """A schema, type or row that does not fit what was declared."""


class NameTakenError(HeadraceError):
    """A stream or query of that name is already there."""


class NotFoundError(HeadraceError):
    """A stream or query that is not there."""


class SourceError(HeadraceError):
    """A source that cannot be read; names the file or range."""


class SinkError(HeadraceError):
    """A sink that cannot be written; fails its own query only."""


class EvaluationError(HeadraceError):
    """A value that cannot be computed, such as an integer overflow; fails its own query only."""


class CheckpointError(HeadraceError):
    """A checkpoint that is in use, of another version, or damaged."""


class SessionError(HeadraceError):
    """A call that the session's state does not allow."""
