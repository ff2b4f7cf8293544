"""The streams of a session: attaches their sources without holding its locks, and tells in which state they are.

A source may take long to attach, or never answer: a server to connect to, a folder of a dead file system. Meanwhile the name of
its stream is reserved, and everything else in the session goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.connectors import Source
from headrace.errors import NameTakenError, NotFoundError, SessionError, SourceError
from headrace.model.names import check_name
from headrace.model.stream import Stream
from headrace.runtime.coordinator import Coordinator


class StreamRegistry:
    """Declarations of streams; `changed` is the condition of the session, whose lock guards all changes."""

    def __init__(self, coordinator: Coordinator, changed: threading.Condition) -> None:
        """Start with the streams of the coordinator."""
        self._coordinator, self._changed = coordinator, changed
        self._attaching: dict[str, Source] = {}

    @contextlib.contextmanager
    def attach(self, name: str, source: Source, time: str, delay: int, max_ahead: int | None) -> Iterator[Stream]:
        """Attach the source of a new or recovered stream and yield the stream; the caller declares it.

        Waits for another call that attaches the same source, and for nothing else. Raises NameTakenError if the stream exists.
        """
        if not self._coordinator.has_stream(name):  # a checkpoint may have names that are invalid now
            check_name("stream", name)
        with self._changed:
            self._changed.wait_for(lambda: all(other is not source for other in self._attaching.values()))
            known = [*self._coordinator.sources, *self._attaching]
            if name in known:
                raise NameTakenError(f"stream '{name}' already exists", detail=f"streams: {', '.join(known)}")
            self._attaching[name] = source
        try:
            with self._changed:
                claim = self._coordinator.claim_source_folder(name, source)
            if claim is not None:
                source.attach(*claim)
            yield Stream(name, source.schema, time, delay, max_ahead)
        finally:
            with self._changed:
                del self._attaching[name]
                self._changed.notify_all()

    def check_exists(self, name: str) -> None:
        """Raise NotFoundError if there is no stream of that name."""
        known = self._coordinator.declared_streams()
        if name not in known:
            raise NotFoundError(f"stream '{name}' does not exist", detail=f"streams: {', '.join(known) or 'none'}")

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the declaration, counts and status of each stream, by name."""
        reports = {}
        failures = self._coordinator.sources.health.failures
        for name, state in self._coordinator.declared_streams().items():
            source, failure = self._coordinator.sources.get(name), failures.get(name)
            status = "detached" if source is None else "ok" if failure is None else "degraded"
            health = {"status": status, "error": None if failure is None else str(failure.error)}
            reports[name] = {**state.describe(), **health, "skipped": {**getattr(source, "skipped", {}), **state.skipped}}
        return reports

    def raise_if_degraded(self) -> None:
        """Raise the error of the only degraded stream, or one that names all of them."""
        errors = {name: failure.error for name, failure in self._coordinator.sources.health.failures.items()}
        if len(errors) == 1:
            stream, error = next(iter(errors.items()))
            raise SourceError(error.message, stream=stream, place=error.place, detail=error.detail, hint=error.hint)
        if errors:
            names = ", ".join(f"'{name}'" for name in errors)
            detail = "; ".join(f"{name}: {error.message}" for name, error in errors.items())
            raise SourceError(f"streams {names} cannot be read", detail=detail, hint="repair their sources, then drain again")


def make_readers_error(name: str, readers: Sequence[str]) -> SessionError:
    """Return the error for a stream that cannot be dropped because these queries read it."""
    return SessionError(
        f"stream '{name}' is read by {len(readers)} quer{'ies' if len(readers) > 1 else 'y'}",
        detail=f"queries: {', '.join(readers)}",
        hint="remove them first, or drop the stream with cascade=True",
    )
