"""Messages of a log, such as Kafka's, as columns: bytes back to back, never a Python object for each message.

A source reads messages into `Messages`, a message format decodes them into rows of the declared columns, and encodes rows for a
sink. A message that cannot be decoded is rejected with its reason; the error policy of the source decides what happens to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.types import Field


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages back to back: message i is `data[offsets[i]:offsets[i + 1]]`.

    `absent`, if given, is true for messages without a value (tombstones); their length is 0.
    """

    offsets: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]
    absent: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class DecodedMessages:
    """The rows of messages, in the order of the messages.

    `positions` has the index of the message of each row; None says that row i is message i. The messages `rejected`, in
    ascending order, have no rows, each for the reason at the same place in `reasons`.
    """

    table: pa.Table
    positions: npt.NDArray[np.int64] | None = None
    rejected: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    reasons: Sequence[str] = ()


class MessageFormat(Protocol):
    """Decodes messages into rows of a declared schema, and encodes rows. It is made once for each schema in each process."""

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """Return the rows of messages with the given columns of the schema, which have exactly the declared types.

        Only these columns are converted. A message that does not fit is rejected alone; nothing but a setting that is wrong for
        every message raises.
        """

    def encode(self, table: pa.Table) -> Messages:
        """Return a message for each row; raises SinkError for a column that the format cannot represent."""
