"""The streams of a session: attaches their sources without holding its locks, and tells in which state they are.

A source may take long to attach, or never answer: a server to connect to, a folder of a dead file system. Meanwhile the name of
its stream is reserved, and everything else in the session goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from headrace.connectors import Source
from headrace.errors import NameTakenError, NotFoundError, SchemaError, SessionError, SourceError
from headrace.model.names import check_name
from headrace.model.stream import Stream
from headrace.model.time import parse_duration
from headrace.model.types import Schema
from headrace.runtime.coordinator import Coordinator
from headrace.storage.locations import use_storage_options


class StreamRegistry:
    """Declarations of streams; `changed` is the condition of the session, whose lock guards all changes."""

    def __init__(self, coordinator: Coordinator, changed: threading.Condition) -> None:
        """Start with the streams of the coordinator."""
        self._coordinator, self._changed = coordinator, changed
        self._attaching: dict[str, Source] = {}

    @contextlib.contextmanager
    def attach(self, name: str, source: Source, make_stream: Callable[[Schema], Stream]) -> Iterator[Stream]:
        """Attach the source of a new or recovered stream and yield the stream; the caller declares it.

        `make_stream` makes it of the columns of the source.

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
            with use_storage_options(self._coordinator.checkpoint.options):
                if claim is not None:
                    source.attach(*claim)
                schema = source.schema
            yield make_stream(schema)
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
            lags = self._coordinator.sources.count_partition_lag(name, state.position)
            reports[name] = {
                **state.describe(),
                **health,
                "skipped": {**getattr(source, "skipped", {}), **state.skipped},
                "lost": self._coordinator.sources.count_lost(name, state.position),
                "lag": self._coordinator.sources.count_lag(name, state.position),
                "partitions": {
                    p: {"max_event_time": time, "idle": p in state.idle_partitions, "lag": lags.get(p)}
                    for p, time in state.partition_times.items()
                },
            }
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


def make_stream_factory(
    name: str, source: Source, time: str, watermark: str, max_ahead: str | None, watermark_by: str | None, idle: str
) -> Callable[[Schema], Stream]:
    """Return the function that makes a stream of its columns; its source has defaults for what is None.

    Raises SchemaError for an invalid duration, or if the source has no partitions to follow.
    """
    return partial(
        Stream,
        name,
        time=time,
        delay=parse_duration(watermark),
        max_ahead=getattr(source, "default_max_ahead", None) if max_ahead is None else parse_duration(max_ahead),
        watermark_by=_choose_watermark_by(source, watermark_by),
        idle=parse_duration(idle),
    )


def _choose_watermark_by(source: Source, wanted: str | None) -> str:
    if wanted == "partition" and not hasattr(source, "list_partitions"):
        raise SchemaError(
            "watermark_by is 'partition', but the source has no partitions", hint="use watermark_by='stream', or leave it out"
        )
    return wanted or str(getattr(source, "default_watermark_by", "stream"))


def make_readers_error(name: str, readers: Sequence[str]) -> SessionError:
    """Return the error for a stream that cannot be dropped because these queries read it."""
    return SessionError(
        f"stream '{name}' is read by {len(readers)} quer{'ies' if len(readers) > 1 else 'y'}",
        detail=f"queries: {', '.join(readers)}",
        hint="remove them first, or drop the stream with cascade=True",
    )
