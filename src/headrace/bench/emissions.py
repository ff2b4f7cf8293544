"""Emissions: the result notices of the systems under test, parsed from lines of text into columns.

A line is `query TAB window_end_us TAB rows [TAB event_time_us]`: the number of result rows of one query and window and, if the
system knows it, the exact event time of the newest contributing row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]

UNKNOWN_TIME = -1  # event time of a line with three fields
_LINE_PATTERN = r"^(?P<query>[^\t\x00]+)\t(?P<window_end>-?\d{1,18})\t(?P<rows>\d{1,18})(?:\t(?P<event_time>-?\d{1,18}))?\r?\n$"


@dataclass(frozen=True, slots=True, eq=False)
class Emissions:
    """One entry per line, in arrival order within a connection; `query_code` holds indexes into `query_names`."""

    arrival_us: Integers
    query_code: Integers
    query_names: tuple[str, ...]
    window_end_us: Integers
    rows: Integers
    event_time_us: Integers

    def __len__(self) -> int:
        """Return the number of lines, not of result rows."""
        return len(self.arrival_us)

    @classmethod
    def empty(cls) -> Emissions:
        """Return no emissions."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, (), empty, empty, empty)

    @classmethod
    def concat(cls, parts: Sequence[Emissions]) -> Emissions:
        """Concatenate emissions in order and merge equal query names."""
        if not parts:
            return cls.empty()
        names = {name: None for part in parts for name in part.query_names}
        code_of = {name: number for number, name in enumerate(names)}
        codes = [np.array([code_of[name] for name in part.query_names], np.int64)[part.query_code] for part in parts]
        return cls(
            np.concatenate([part.arrival_us for part in parts]),
            np.concatenate(codes),
            tuple(names),
            np.concatenate([part.window_end_us for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.event_time_us for part in parts]),
        )

    def filter_queries(self, names: Collection[str]) -> Emissions:
        """Keep the emissions of the given queries."""
        selected = np.array([name in names for name in self.query_names], np.bool_)
        return self.filter_lines(selected[self.query_code])

    def filter_lines(self, mask: npt.NDArray[np.bool_]) -> Emissions:
        """Keep the emissions that the mask selects."""
        return Emissions(
            self.arrival_us[mask],
            self.query_code[mask],
            self.query_names,
            self.window_end_us[mask],
            self.rows[mask],
            self.event_time_us[mask],
        )


def parse_lines(lines: bytes, arrival_us: Integers) -> tuple[Emissions, list[bytes]]:
    """Parse newline-terminated lines with their arrival times; return the emissions and the malformed lines."""
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
    if not len(ends):
        return Emissions.empty(), []
    offsets = np.concatenate((np.zeros(1, np.int64), ends.astype(np.int64)))
    texts = pa.Array.from_buffers(pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(lines)])
    fields = pc.extract_regex(texts, _LINE_PATTERN)
    valid = fields.is_valid()
    query, window_end, rows, event_time = fields.filter(valid).flatten()
    encoded = query.dictionary_encode()
    known_time = pc.if_else(pc.equal(event_time, b""), str(UNKNOWN_TIME).encode(), event_time)
    emissions = Emissions(
        arrival_us[valid.to_numpy(zero_copy_only=False)],
        encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        tuple(name.decode(errors="replace") for name in encoded.dictionary.to_pylist()),
        _parse_integers(window_end),
        _parse_integers(rows),
        _parse_integers(known_time),
    )
    return emissions, texts.filter(pc.invert(valid)).to_pylist()


def _parse_integers(digits: pa.Array) -> Integers:
    numbers: Integers = digits.cast(pa.large_utf8()).cast(pa.int64()).to_numpy()
    return numbers
