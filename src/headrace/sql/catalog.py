"""The streams a query may read and the functions it may call, by name, whatever the case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.errors import SchemaError
from headrace.model.function import UserFunction
from headrace.model.stream import Stream


@dataclass(frozen=True, slots=True)
class Catalog:
    """An immutable set of declared streams, and of registered functions; names are unique when case is ignored."""

    streams: tuple[Stream, ...] = ()
    functions: tuple[UserFunction, ...] = ()
    _by_name: dict[str, Stream] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index by lower-case name; refuse two streams that SQL could not tell apart."""
        by_name: dict[str, Stream] = {}
        for stream in self.streams:
            if stream.name.lower() in by_name:
                raise SchemaError(f"stream '{stream.name}' is declared twice")
            by_name[stream.name.lower()] = stream
        object.__setattr__(self, "_by_name", by_name)

    @staticmethod
    def of(streams: Iterable[Stream], functions: Iterable[UserFunction] = ()) -> Catalog:
        """Return the catalog of these streams and functions."""
        return Catalog(tuple(streams), tuple(functions))

    def lookup(self, name: str) -> Stream | None:
        """Return the stream of that name, whatever the case, or None."""
        return self._by_name.get(name.lower())

    def function(self, name: str) -> UserFunction | None:
        """Return the registered function of that name, whatever the case, or None."""
        return next((one for one in self.functions if one.name == name.lower()), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The declared names, sorted, for messages."""
        return tuple(sorted(stream.name for stream in self.streams))
