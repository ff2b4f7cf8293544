"""Unnested streams: a stream with a row for each element of a list, made before any query processes the rows.

    tweets   ──(text: 'a b')──(text: NULL)──(text: 'c')──▶
    words       a, b                          c              at the event time of their tweet

The unnested stream has all columns and the watermark of its base stream, and one more column for the element. Its name is a
hash of its definition, so that all queries that unnest the same list read the same stream, and it is made once for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.expression import Column, Expression
from headrace.model.schema import Field, Schema
from headrace.model.stream import Stream


@dataclass(frozen=True, slots=True)
class UnnestedStream:
    """A stream with a row for each element of `list_expression`, a list over columns of `base`.

    A row whose list is NULL or empty yields no rows.
    """

    stream: Stream
    base: str
    list_expression: Expression

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    @property
    def element(self) -> Column:
        """The element column, which is the last one."""
        last = self.stream.schema.fields[-1]
        return Column(last.name, last.type)


def unnest_stream(base: Stream, values: Expression) -> UnnestedStream:
    """Return the unnested stream of a list expression; equal lists of one stream give equal streams."""
    element = Field(f"#{len(base.schema)}", values.type.value_type)
    name = f"{base.name}*{hashlib.sha256(repr(values).encode()).hexdigest()[:12]}"
    return UnnestedStream(Stream(name, Schema((*base.schema.fields, element)), base.time, base.delay), base.name, values)


def collect_unnested(names: Iterable[str], known: Mapping[str, UnnestedStream]) -> tuple[UnnestedStream, ...]:
    """Return the unnested streams among `names`, each after the unnested streams that it is based on."""
    collected: dict[str, UnnestedStream] = {}
    for name in names:
        source = known.get(name)
        if source is not None and name not in collected:
            collected |= {base.name: base for base in collect_unnested([source.base], known)} | {name: source}
    return tuple(collected.values())


def resolve_declared_name(name: str, unnested: Mapping[str, UnnestedStream]) -> str:
    """Return the declared stream that an unnested stream is ultimately based on; any other name is returned unchanged."""
    while name in unnested:
        name = unnested[name].base
    return name
