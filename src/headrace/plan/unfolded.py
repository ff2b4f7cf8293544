"""Rows with lists as rows of their elements: a stream made of another, before any query looks at it.

    tweets   ──(text: 'a b')──(text: NULL)──(text: 'c')──▶
    words       a, b                          c              at the event time of their tweet

The new stream has all columns of the one it is made of, with the same watermark, and one more for the element. Its name
follows from what it is made of, so that all queries that unfold alike read the same stream, and it is made once for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.expression import Column, Expression
from headrace.model.schema import Field, Schema
from headrace.model.stream import Stream


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A stream with a row for each element of `values`, lists over columns of `base`; none where the list is NULL or empty."""

    stream: Stream
    base: str
    values: Expression

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    @property
    def element(self) -> Column:
        """The column of elements, the last one."""
        last = self.stream.schema.fields[-1]
        return Column(last.name, last.type)


def unfolded(base: Stream, values: Expression) -> Unfolded:
    """Return the stream of the elements of lists; equal lists of one stream give equal streams."""
    element = Field(f"#{len(base.schema)}", values.type.value_type)
    name = f"{base.name}*{hashlib.sha256(repr(values).encode()).hexdigest()[:12]}"
    return Unfolded(Stream(name, Schema((*base.schema.fields, element)), base.time, base.delay), base.name, values)


def needed(names: Iterable[str], known: Mapping[str, Unfolded]) -> tuple[Unfolded, ...]:
    """Return the unfolded streams among those of these names, with those they are made of before them."""
    found: dict[str, Unfolded] = {}
    for name in names:
        one = known.get(name)
        if one is not None and name not in found:
            found |= {each.name: each for each in needed([one.base], known)} | {name: one}
    return tuple(found.values())


def declared(name: str, made: Mapping[str, Unfolded]) -> str:
    """Return the stream that an unfolded one is made of in the end; any other is itself."""
    while name in made:
        name = made[name].base
    return name
