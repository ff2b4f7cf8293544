"""The sinks of one query. Each has a number that is never reused, and receives the rows of a range of batches.

Numbers start at 0. The JSON form of a query with one sink from its first batch on is that of the sink; a callback has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.connectors.sinks.base import CallbackSink, MemorySink, MissingCallback, Sink
from headrace.connectors.sinks.specification import sink_from_json
from headrace.errors import SinkError

_SET_KIND = "set"
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class QuerySink:
    """A sink of a query, for the rows of batches from `first_batch` on, and before `end_batch` if it was taken away."""

    number: int
    sink: Sink
    first_batch: int = 0
    end_batch: int | None = None

    def takes_batch(self, batch: int) -> bool:
        """Return whether the sink receives the rows of a batch."""
        return self.first_batch <= batch and (self.end_batch is None or batch < self.end_batch)

    @property
    def is_delivered(self) -> bool:
        """Whether the driver passes the rows to the sink, after the commit."""
        return not self.sink.written_by_workers and not isinstance(self.sink, MemorySink)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        value: dict[str, Any] = {"number": self.number, "sink": _to_json(self.sink), "first_batch": self.first_batch}
        return value if self.end_batch is None else {**value, "end_batch": self.end_batch}


@dataclass(frozen=True, slots=True)
class SinkSet:
    """The sinks of a query; those that were taken away stay until their rows are delivered."""

    items: tuple[QuerySink, ...] = field(default_factory=lambda: (QuerySink(0, MemorySink()),))
    next_number: int = 1

    @staticmethod
    def of(sinks: Sequence[Sink]) -> SinkSet:
        """Return the set of a new query; raises SinkError without any, or if two of them keep or discard the rows."""
        if not sinks:
            raise SinkError("a query needs a sink", hint="sink='noop' discards the results")
        items = tuple(QuerySink(number, sink) for number, sink in enumerate(sinks))
        found = SinkSet(items, len(items))
        found._check_kinds()
        return found

    def _check_kinds(self) -> None:
        kinds = [item.sink for item in self.active]
        if sum(isinstance(sink, MemorySink) for sink in kinds) > 1:
            raise SinkError("a query can have one memory sink only")
        paths = [getattr(sink, "path", None) for sink in kinds if sink.written_by_workers]
        repeated = next((path for path in paths if path is not None and paths.count(path) > 1), None)
        if repeated is not None:
            raise SinkError(f"two sinks of a query write to '{repeated}'")

    def __iter__(self) -> Iterator[QuerySink]:
        """Yield all sinks, also those that were taken away."""
        return iter(self.items)

    @property
    def active(self) -> tuple[QuerySink, ...]:
        """The sinks that were not taken away."""
        return tuple(item for item in self.items if item.end_batch is None)

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The sinks that were not taken away, without their numbers."""
        return tuple(item.sink for item in self.active)

    def select_batch(self, batch: int) -> tuple[QuerySink, ...]:
        """Return the sinks that receive the rows of a batch."""
        taking = [item for item in self.items if item.takes_batch(batch)]
        return self.items if len(taking) == len(self.items) else tuple(taking)

    def get(self, number: int) -> QuerySink:
        """Return a sink by its number; raises SinkError if there is none."""
        found = next((item for item in self.items if item.number == number), None)
        if found is None:
            raise SinkError(
                f"sink {number} does not exist", detail=f"sinks: {', '.join(str(item.number) for item in self.active) or 'none'}"
            )
        return found

    def add(self, sink: Sink, first_batch: int = NEVER) -> SinkSet:
        """Return the set with a further sink, which has the number `next_number`; raises SinkError if it does not fit.

        Without a batch, the sink waits: the batch is known when it is installed.
        """
        added = SinkSet((*self.items, QuerySink(self.next_number, sink, first_batch)), self.next_number + 1)
        added._check_kinds()
        return added

    def end(self, number: int, batch: int) -> SinkSet:
        """Return the set in which a sink receives no rows from a batch on."""
        ended = (
            replace(item, end_batch=batch) if item.number == number and item.end_batch is None else item for item in self.items
        )
        return replace(self, items=tuple(ended))

    def drop_delivered(self, delivered_batch: int) -> SinkSet:
        """Return the set without sinks that were taken away and have received the rows up to their end."""
        kept = tuple(item for item in self.items if item.end_batch is None or item.end_batch - 1 > delivered_batch)
        return self if len(kept) == len(self.items) else replace(self, items=kept)

    def install(self, installed: SinkSet) -> SinkSet:
        """Return the sinks that a committed batch has installed, with the callbacks of this set, and those that still wait."""
        known = {item.number: item.sink for item in self.items}
        items = (
            replace(item, sink=known.get(item.number, item.sink)) if isinstance(item.sink, MissingCallback) else item
            for item in installed.items
        )
        waiting = (item for item in self.items if item.number >= installed.next_number)
        return SinkSet((*items, *waiting), max(self.next_number, installed.next_number))

    def attach_callbacks(self, functions: Sequence[Sink]) -> SinkSet:
        """Return the set with callbacks in the places of those that are missing, in order."""
        waiting = iter([sink for sink in functions if isinstance(sink, CallbackSink)])
        items = (
            replace(item, sink=next(waiting, item.sink)) if isinstance(item.sink, MissingCallback | CallbackSink) else item
            for item in self.items
        )
        return replace(self, items=tuple(items))

    def matches(self, sinks: Sequence[Sink]) -> bool:
        """Return whether these are the sinks that were not taken away, whatever the functions of callbacks are."""
        return len(sinks) == len(self.sinks) and all(map(_is_same, sinks, self.sinks))

    def to_json(self) -> Any:
        """Return the JSON form, for `sink_set_from_json`."""
        if len(self.items) == 1 and self.next_number == 1 and self.items[0] == QuerySink(0, self.items[0].sink):
            return _to_json(self.items[0].sink)
        return {"kind": _SET_KIND, "next_number": self.next_number, "sinks": [item.to_json() for item in self.items]}

    def describe(self) -> str:
        """Return the destinations in a few words."""
        return ", ".join(sink.describe() for sink in self.sinks) or "none"


def sink_set_from_json(value: Any) -> SinkSet:
    """Return the sinks of a query from their JSON form; callbacks are missing until they are passed again."""
    if value is None or value.get("kind") != _SET_KIND:
        return SinkSet((QuerySink(0, query_sink_from_json(value)),), 1)
    items = (
        QuerySink(item["number"], query_sink_from_json(item["sink"]), item["first_batch"], item.get("end_batch"))
        for item in value["sinks"]
    )
    return SinkSet(tuple(items), value["next_number"])


def is_sink_set(value: Any) -> bool:
    """Return whether a JSON form is that of a query whose sinks are several, or have changed."""
    return isinstance(value, Mapping) and value.get("kind") == _SET_KIND


def _to_json(sink: Sink) -> Any:
    return None if isinstance(sink, CallbackSink | MissingCallback) else sink.to_json()


def query_sink_from_json(value: Any) -> Sink:
    """Return one sink of a query from its JSON form; None is that of a callback."""
    return MissingCallback() if value is None else sink_from_json(value)


def _is_same(one: Sink, other: Sink) -> bool:
    callbacks = CallbackSink | MissingCallback
    return (isinstance(one, callbacks) and isinstance(other, callbacks)) or one == other
