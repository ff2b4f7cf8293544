"""A stream, as declared: its rows, which column is event time, how far disorder may reach."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.schema import Schema, type_name


@dataclass(frozen=True, slots=True)
class Stream:
    """`delay` (microseconds) is subtracted from the greatest event time seen to give the watermark."""

    name: str
    schema: Schema
    time: str
    delay: int = 0

    def __post_init__(self) -> None:
        """Check that the event-time column is there and is a timestamp."""
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
        object.__setattr__(self, "time", field.name)  # as declared, whatever the case it was given in
        if self.delay < 0:
            raise SchemaError(f"watermark delay of stream '{self.name}' is negative")
