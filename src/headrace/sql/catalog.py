"""The catalog of declared streams and registered UDFs; names are case-insensitive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.errors import SchemaError
from headrace.model.function import UserFunction
from headrace.model.stream import Stream


@dataclass(frozen=True, slots=True)
class Catalog:
    """An immutable set of declared streams and registered UDFs; stream names are unique ignoring case."""

    streams: tuple[Stream, ...] = ()
    functions: tuple[UserFunction, ...] = ()
    _streams_by_name: dict[str, Stream] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index streams by lower-case name; reject names that differ only in case."""
        by_name: dict[str, Stream] = {}
        for stream in self.streams:
            if stream.name.lower() in by_name:
                raise SchemaError(f"stream '{stream.name}' is declared twice")
            by_name[stream.name.lower()] = stream
        object.__setattr__(self, "_by_name", by_name)

    @staticmethod
    def of(streams: Iterable[Stream], functions: Iterable[UserFunction] = ()) -> Catalog:
        """Make a catalog of streams and functions."""
        return Catalog(tuple(streams), tuple(functions))

    def find_stream(self, name: str) -> Stream | None:
        """Return the stream of that name, ignoring case, or None."""
        return self._streams_by_name.get(name.lower())

    def find_function(self, name: str) -> UserFunction | None:
        """Return the registered function of that name, ignoring case, or None."""
        return next((function for function in self.functions if function.name == name.lower()), None)

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The sorted names of the declared streams, for error messages."""
        return tuple(sorted(stream.name for stream in self.streams))
