"""Error classes that headrace raises on purpose, under one root.

An error has up to four parts, in the order in which a user needs them: the primary line (kind of thing, quoted), the
place (for SQL: the line with a caret), the detail (what exists instead) and the hint (what to do).
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from pathlib import Path

_LOG = logging.getLogger("headrace")
_MAX_MESSAGE = 500  # characters of the message of an unexpected exception
_MAX_FRAMES = 6


class HeadraceError(Exception):
    """Root of all errors that a user can act on; `str()` returns all parts, one per line."""

    def __init__(self, message: str, *, place: str = "", detail: str = "", hint: str = "") -> None:
        """Build the text; `message` names the kind of thing and quotes it, the other parts may be empty."""
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
        """Pickle all parts: errors cross process boundaries (Spark workers)."""
        return (_rebuild_error, (type(self), self.message, self.place, self.detail, self.hint))


def _rebuild_error(kind: type[HeadraceError], message: str, place: str, detail: str, hint: str) -> HeadraceError:
    return kind(message, place=place, detail=detail, hint=hint)


class SqlError(HeadraceError):
    """The query does not parse or bind, or uses an unsupported feature; adding it has no effect on the session."""


class SchemaError(HeadraceError):
    """A schema, type or row does not match the declaration."""


class NameTakenError(HeadraceError):
    """A stream or query of that name already exists."""


class NotFoundError(HeadraceError):
    """No stream or query of that name exists."""


class SourceError(HeadraceError):
    """A source is unreadable; the message names the file or range, and `stream` the stream if it is known.

    It degrades that stream only: its queries wait, those of other streams go on.
    """

    def __init__(self, message: str, *, stream: str = "", place: str = "", detail: str = "", hint: str = "") -> None:
        """Build the text as every error does."""
        super().__init__(message, place=place, detail=detail, hint=hint)
        self.stream = stream

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all parts, and the stream."""
        return (_rebuild_source_error, (type(self), self.message, self.place, self.detail, self.hint, self.stream))


def _rebuild_source_error(kind: type[SourceError], message: str, place: str, detail: str, hint: str, stream: str) -> SourceError:
    return kind(message, stream=stream, place=place, detail=detail, hint=hint)


class SinkError(HeadraceError):
    """Writing to a sink failed; fails only the query of that sink."""


class DestinationUnavailableError(SinkError):
    """A destination, or what leads to it, cannot be used now: its sink is degraded, and tried again."""


class EvaluationError(HeadraceError):
    """An expression has no value for a row, such as an integer overflow; fails only its own query."""


class CheckpointError(HeadraceError):
    """A checkpoint is in use, has another version, or is damaged."""


class StorageError(CheckpointError):
    """A file of the checkpoint cannot be written, such as on a full disk; nothing that was committed is lost."""


class OwnershipLostError(CheckpointError):
    """Another session has taken the checkpoint over; this one commits nothing any more."""


class SessionError(HeadraceError):
    """The state of the session does not allow the call."""


class QueueFullError(SessionError):
    """As many query changes wait for a micro-batch as may wait; the same call can succeed later."""


class WorkerLostError(SessionError):
    """A worker process ended while it ran a task: its machine failed, or the code of a query ended it."""


class OperatorError(HeadraceError):
    """An operator raised an exception that it does not expect, or ran out of memory; the batch can run without the culprit.

    `queries` are the ids of the queries, or parts of queries, that use the operator; empty if any query may be the cause.
    """

    def __init__(self, message: str, *, place: str = "", detail: str = "", hint: str = "", queries: tuple[int, ...] = ()) -> None:
        """Build the text, and keep the queries."""
        super().__init__(message, place=place, detail=detail, hint=hint)
        self.queries = queries

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all parts."""
        return (_rebuild_operator_error, (self.message, self.detail, self.queries))


def _rebuild_operator_error(message: str, detail: str, queries: tuple[int, ...]) -> OperatorError:
    return OperatorError(message, detail=detail, queries=queries)


class InstallationError(HeadraceError):
    """An installed package keeps headrace from working; raised when the module that needs it is imported."""


class InternalError(HeadraceError):
    """A bug of headrace, not an error of the user; `detail` has the reference under which the log has the traceback."""


def log_internal_error(failure: str, problem: BaseException) -> InternalError:
    """Log an unexpected exception with its traceback, and return the error to raise in its place, from `problem`.

    `failure` says what failed. Log line and error have the same reference: eight hexadecimal digits made of the kind of the
    exception and the lines that it came through, so that a bug has one reference however often it occurs.
    """
    lines = [f"{frame.f_code.co_qualname} {line}" for frame, line in traceback.walk_tb(problem.__traceback__)]
    reference = hashlib.sha256("\n".join([type(problem).__name__, *lines]).encode()).hexdigest()[:8]
    _LOG.error("internal error, reference %s: %s", reference, failure, exc_info=problem)
    return InternalError(
        f"internal error: {failure}",
        detail=f"reference {reference}",
        hint="this is a bug of headrace: report it with the reference; the log has it together with the traceback",
    )


def describe_exception(problem: BaseException) -> str:
    """Return kind, message and innermost frames of an exception in one bounded line: `ValueError: … (cast.py:10 f < …)`."""
    frames = [
        f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(problem.__traceback__)
    ]
    text = " ".join(str(problem).split())
    text = f"{text[:_MAX_MESSAGE]}…" if len(text) > _MAX_MESSAGE else text
    return f"{type(problem).__name__}: {text} ({' < '.join(reversed(frames[-_MAX_FRAMES:]))})"
