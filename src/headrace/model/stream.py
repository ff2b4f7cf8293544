"""A declared stream: its schema, its event-time column, and how far rows may be out of order."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.record import record
from headrace.model.types import Schema, type_name


@record("stream")
@dataclass(frozen=True, slots=True)
class Stream:
    """A stream; the watermark is the greatest event time seen minus `delay` (microseconds).

    Rows whose event time is more than `max_ahead` microseconds after the clock of their batch are dropped, so that one wrong
    clock does not make all other rows late; None drops none.
    """

    name: str
    schema: Schema
    time: str
    delay: int = 0
    max_ahead: int | None = None

    def __post_init__(self) -> None:
        """Check that the event-time column exists and is a timestamp."""
        field = self.schema.find(self.time)
        if field is None:
            raise SchemaError(
                f"event-time column '{self.time}' of stream '{self.name}' is not declared",
                detail=f"columns: {', '.join(self.schema.names)}",
            )
        if not pa.types.is_timestamp(field.type):
            raise SchemaError(
                f"event-time column '{self.time}' of stream '{self.name}' is {type_name(field.type)}, not TIMESTAMP",
                hint="declare it as TIMESTAMP, or name another column with time=…",
            )
        object.__setattr__(self, "time", field.name)  # in the case of the declaration
        if self.delay < 0:
            raise SchemaError(f"watermark delay of stream '{self.name}' is negative")
