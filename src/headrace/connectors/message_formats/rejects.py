"""Rejected messages of a decoder: why, and where in the message; and the rows that remain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.kernels import decoded as codes
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.model.types import Field, Schema, type_name

Decode: TypeAlias = Callable[[Messages, Sequence[Field]], DecodedMessages]

_MAX_DATA = 1 << 30  # bytes that are decoded at once: text columns of Arrow hold less than 2 GiB
OTHER = 255  # the code of a reason that is given as text
_MESSAGE_REASONS = {
    codes.EMPTY: "the message is empty",
    codes.NOT_UTF8: "the message is not UTF-8",
    codes.NOT_OBJECT: "expected a JSON object",
    codes.MALFORMED: "malformed {format}",
    codes.TRAILING: "bytes after the end of the {format}",
    codes.BEHIND_MALFORMED: "behind a malformed {format}, whose end is unknown",
    codes.TOO_DEEP: "nested deeper than 512 levels",
}
_COLUMN_REASONS = {
    codes.NOT_INTEGER: "expected an integer",
    codes.NOT_NUMBER: "expected a number",
    codes.NOT_BOOLEAN: "expected true or false",
    codes.NOT_TEXT: "expected text",
    codes.NOT_DATE: "expected a date as ISO-8601 text",
    codes.NOT_TIMESTAMP: "expected a time as ISO-8601 text",
    codes.NOT_DECIMAL: "expected a number, or text that spells one",
    codes.OUT_OF_RANGE: "the number is out of range",
    codes.LOST_DIGITS: "the number has more digits after the point",
    codes.LONE_SURROGATE: "the text has half of a surrogate pair",
    codes.NOT_NESTED: "expected an object on the way to the column",
    codes.NOT_TEXT_BYTES: "the text is not UTF-8",
    codes.UNFIT_BRANCH: "the value has another type",
}


@dataclass(frozen=True, slots=True)
class Rejects:
    """By row: the code of the reason, or 0; the number of the column, or −1; the position of the byte; and texts of OTHER."""

    format: str
    codes: npt.NDArray[np.uint8]
    columns: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    texts: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def allocate(format_name: str, rows: int) -> Rejects:
        """Return rejects of no row."""
        return Rejects(format_name, np.zeros(rows, np.uint8), np.full(rows, -1, np.int32), np.zeros(rows, np.int64))

    def add(self, row: int, code: int, column: int, position: int) -> None:
        """Reject a row, unless it is rejected."""
        if not self.codes[row]:
            self.codes[row], self.columns[row], self.positions[row] = code, column, position

    def add_text(self, rows: npt.NDArray[np.int64], reason: str) -> None:
        """Reject rows for a reason of the caller."""
        self.codes[rows] = OTHER
        self.texts.update(dict.fromkeys(rows.tolist(), reason))

    def drop_rows(self, arrays: Mapping[str, pa.Array], wanted: Sequence[Field], columns: Sequence[Field]) -> DecodedMessages:
        """Return the wanted columns of the rows that are not rejected, and the reasons of the others.

        `columns` are those that the rejects have the numbers of. Without wanted columns, the table still has its number of rows.
        """
        kept = np.flatnonzero(self.codes == 0)
        names = [column.name for column in wanted]
        table = pa.Table.from_arrays([arrays[name] for name in names], schema=Schema(tuple(wanted)).to_arrow())
        if not names:
            return DecodedMessages(pa.table({"rows": pa.nulls(len(kept))}).select([]), kept, *self._list_rejected(columns))
        if len(kept) == len(self.codes):
            return DecodedMessages(table)
        return DecodedMessages(table.take(kept), kept, *self._list_rejected(columns))

    def _list_rejected(self, columns: Sequence[Field]) -> tuple[npt.NDArray[np.int64], list[str]]:
        rejected = np.flatnonzero(self.codes)
        return rejected, [self._describe(row, columns) for row in rejected.tolist()]

    def _describe(self, row: int, columns: Sequence[Field]) -> str:
        code, place = int(self.codes[row]), int(self.positions[row])
        if code == OTHER:
            return self.texts[row]
        if code in _MESSAGE_REASONS:
            return f"{_MESSAGE_REASONS[code].format(format=self.format)} (byte {place})"
        column = columns[self.columns[row]]
        return f"column '{column.name}' {type_name(column.type)}: {_COLUMN_REASONS[code]} (byte {place})"


def is_large(messages: Messages) -> bool:
    """Return whether messages must be decoded in two halves."""
    return len(messages) > 1 and bool(messages.offsets[-1] - messages.offsets[0] > _MAX_DATA)


def decode_halves(decode: Decode, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
    """Decode one half of the messages after the other."""
    middle, absent = len(messages) // 2, messages.absent
    first = decode(Messages(messages.offsets[: middle + 1], messages.data, None if absent is None else absent[:middle]), columns)
    second = decode(Messages(messages.offsets[middle:], messages.data, None if absent is None else absent[middle:]), columns)
    positions = [np.arange(half.table.num_rows) if half.positions is None else half.positions for half in (first, second)]
    return DecodedMessages(
        pa.concat_tables([first.table, second.table]),
        np.concatenate([positions[0], positions[1] + middle]),
        np.concatenate([first.rejected, second.rejected + middle]),
        [*first.reasons, *second.reasons],
    )
