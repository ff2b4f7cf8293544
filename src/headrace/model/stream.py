"""A declared stream: its schema, its event-time column, and how far rows may be out of order."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.record import record
from headrace.model.types import Schema, type_name
from headrace.model.watermark import DEFAULT_IDLE, WATERMARKS_BY


@record("stream")
@dataclass(frozen=True, slots=True)
class Stream:
    """A stream; the watermark is the greatest event time seen minus `delay` (microseconds).

    With `watermark_by` "partition" it is the least of the greatest event times of the partitions, minus `delay`. A partition that
    had no rows for `idle` microseconds, in which others had some, does not count.
    Rows of a derived stream may come so much later than the watermarks of the streams below it say: `lag`.
    Rows whose event time is more than `max_ahead` microseconds after the clock of their batch are dropped, so that one wrong
    clock does not make all other rows late; None drops none.
    """

    name: str
    schema: Schema
    time: str
    delay: int = 0
    max_ahead: int | None = None
    watermark_by: str = "stream"
    idle: int = DEFAULT_IDLE
    lag: int = 0

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
        if self.watermark_by not in WATERMARKS_BY:
            raise SchemaError(f"unknown watermark_by '{self.watermark_by}'", detail=f"one of: {', '.join(WATERMARKS_BY)}")
        if self.idle <= 0:
            raise SchemaError(f"idle of stream '{self.name}' is not positive", hint="write a duration such as 10 seconds")
        if self.delay < 0:
            raise SchemaError(f"watermark delay of stream '{self.name}' is negative")
