"""Completion of joined rows after their last step, where a join buffer had references instead of columns.

    level n      user │ row of clicks, as a reference │ row of ads       joined; sent to the partition of the home buffer
    level n + 1  user │ row of clicks, complete       │ row of ads       finished, or sent on for the next input

Only rows of results travel so, each to one partition for each input with a reference. Home buffers are read at the first level;
what later levels need of them is passed on within the partition: references to files, and rows that are in no file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.engine.batch_job import StateRef
from headrace.engine.compute.columns import combine_chunks, to_numbers
from headrace.engine.compute.keys import find_range_partitions
from headrace.engine.joins.join_output import JoinOutput
from headrace.engine.joins.joined_rows import ChunkedColumn, Integers, JoinedRows, JoinTable, TableSelection
from headrace.engine.joins.joiner import Joiner
from headrace.engine.joins.routing import FetchAddress, HomeAddress, select_routed, split_rows
from headrace.engine.joins.row_references import HOME_HASH, ROW_ID, ROW_REFERENCE, RowDirectory
from headrace.engine.joins.segment import RowSegment, pack_rows, view_columns, view_segments
from headrace.engine.operators.query_sets import make_bitmap
from headrace.engine.stage_messages import LevelMessage, Outbox
from headrace.planner.shared_plan import JoinBuffer

ActiveJoiners = Mapping[Joiner, int]
_HomeKey = tuple[str, int]


class HomeSlice(Protocol):
    """The rows of a slice of a join buffer."""

    @property
    def start(self) -> int:
        """The start of the slice."""

    @property
    def rows(self) -> RowSegment:
        """Its rows in this partition."""


@dataclass(frozen=True, slots=True)
class HomePart:
    """Some rows of a home buffer: where they are stored, or the rows themselves."""

    ref: StateRef | None
    rows: RowSegment | None


class HomeRows:
    """The rows of home buffers in one partition that joins may fetch in this batch, by stream and slot."""

    def __init__(
        self,
        joiners: Iterable[Joiner],
        closing_ends: Mapping[int, tuple[int, int]],
        buffers: Iterable[tuple[StateRef, JoinBuffer, HomeSlice]],
    ) -> None:
        """Take the joiners, and what the partition stores and has received of join buffers: later levels have none.

        `closing_ends` maps each join whose windows may close to (watermark before, last end).
        """
        self._spans: dict[_HomeKey, list[tuple[int, int]]] = defaultdict(list)
        self._last_level = 0
        for joiner in joiners:
            if joiner.live.id not in closing_ends or not joiner.fetched_inputs:
                continue
            before, last = closing_ends[joiner.live.id]
            self._last_level = max(self._last_level, joiner.chain.extra_shuffles + len(joiner.fetched_inputs))
            for index in joiner.fetched_inputs:
                self._spans[joiner.find_home(index)].append((before - joiner.size, last))
        self._parts: dict[_HomeKey, list[HomePart]] = defaultdict(list)
        self._directories: dict[_HomeKey, tuple[list[RowSegment], RowDirectory]] = {}
        self._columns: dict[tuple[_HomeKey, str], ChunkedColumn] = {}
        self._add_slices(buffers)

    def _add_slices(self, buffers: Iterable[tuple[StateRef, JoinBuffer, HomeSlice]]) -> None:
        """Add the rows of home buffers, as far as they lie in windows that close."""
        for ref, buffer, buffer_slice in buffers if self._spans else ():
            spans = self._spans.get((ref.stream, buffer.slot), ())
            if ROW_ID in buffer_slice.rows.columns and any(low < buffer_slice.start < high for low, high in spans):
                part = HomePart(ref if ref.file else None, buffer_slice.rows)
                self._parts[ref.stream, buffer.slot].append(part)

    def add_forwarded(self, messages: Sequence[LevelMessage], load: Callable[[StateRef], RowSegment]) -> None:
        """Add what the level before has passed on."""
        for slot, ref in (entry for message in messages for entry in message.home_refs):
            self._parts[ref.stream, slot].append(HomePart(ref, load(ref)))
        routed = [routed for message in messages for routed in message.join_rows]
        for address, rows in select_routed(routed, HomeAddress):
            self._parts[address.stream, address.slot].append(HomePart(None, rows))

    def forward(self, outbox: Outbox, level: int) -> None:
        """Pass the rows on to the next level of this partition, if joined rows may arrive there."""
        if level >= self._last_level:
            return
        for (stream, slot), parts in self._parts.items():
            for part in parts:
                if part.ref is not None:
                    outbox.get_message(outbox.sender).home_refs.append((slot, part.ref))
                elif part.rows is not None:
                    outbox.send_rows(outbox.sender, HomeAddress(stream, slot), part.rows)

    def find_rows(self, joiners: Sequence[Joiner], index: int, ids: Integers) -> TableSelection:
        """Return the columns that queries read of the rows of an input with these ids."""
        home = joiners[0].find_home(index)
        if home not in self._directories:
            segments = [part.rows for part in self._parts[home] if part.rows is not None]
            self._directories[home] = segments, RowDirectory([segment.columns[ROW_ID] for segment in segments])
        segments, directory = self._directories[home]
        types = {name: kind for joiner in joiners for name, kind in joiner.list_output_types(index).items()}
        missing = {name: kind for name, kind in types.items() if (home, name) not in self._columns}
        for name, column in view_columns(segments, missing).columns.items() if missing else ():
            self._columns[home, name] = column
        columns = {f"{index}.{name}": self._columns[home, name] for name in types}
        return TableSelection(JoinTable(columns, sum(segment.row_count for segment in segments)), directory.find_places(ids))


class RowFetcher:
    """Finishes joined rows at one level, after fetching the columns that they refer to."""

    def __init__(self, output: JoinOutput, home_rows: HomeRows, set_width: int) -> None:
        """`set_width` is that of query-sets, in words."""
        self._output, self._home_rows, self._set_width = output, home_rows, set_width

    def finish_rows(self, joiners: Sequence[Joiner], rows: JoinedRows, round_number: int, window_ends: Mapping[int, int]) -> None:
        """Finish rows that have passed the last step of joins with equal paths; `window_ends` has their windows by bit."""
        groups: dict[tuple[int, ...], list[Joiner]] = defaultdict(list)
        for joiner in joiners:
            groups[joiner.fetched_inputs].append(joiner)
        for inputs, group in groups.items():
            own_rows = rows
            if inputs and len(groups) > 1:
                own_rows = rows.restrict_sets(rows.sets & make_bitmap([joiner.bit for joiner in group], self._set_width))
            self._complete_rows(group, own_rows, 0, round_number, window_ends)

    def finish_arrived(self, messages: Sequence[LevelMessage], find_active: Callable[[int], ActiveJoiners]) -> None:
        """Complete the rows that the level before has sent; `find_active` returns the joiners and window ends of a round."""
        arrived: dict[FetchAddress, list[RowSegment]] = defaultdict(list)
        routed_rows = [routed for message in messages for routed in message.join_rows]
        for address, segment in select_routed(routed_rows, FetchAddress):
            arrived[address].append(segment)
        for address, segments in arrived.items():
            active = find_active(address.round_number)
            first = next((joiner for joiner in active if joiner.live.id == address.query_id), None)
            if first is None:
                continue
            group = [j for j in active if (j.path, j.fetched_inputs) == (first.path, first.fetched_inputs)]
            window_ends = {joiner.bit: end for joiner, end in active.items()}
            self._fetch(group, view_segments(segments, self._set_width), address.position, address.round_number, window_ends)

    def _complete_rows(
        self, joiners: Sequence[Joiner], rows: JoinedRows, position: int, round_number: int, window_ends: Mapping[int, int]
    ) -> None:
        """Send rows to the home of their next reference, among those of the inputs from `position` on; finish the others."""
        for later, index in list(enumerate(joiners[0].fetched_inputs))[position:]:
            name = f"{index}.{ROW_REFERENCE}"
            if not rows.row_count or not rows.has_column(name):
                continue
            references = combine_chunks(rows.get_column(name))
            if not references.null_count:
                self._send_rows(joiners, rows, later, round_number, window_ends)
                return
            is_complete = np.asarray(references.is_null())
            self._send_rows(joiners, rows.take(np.flatnonzero(~is_complete)), later, round_number, window_ends)
            rows = rows.take(np.flatnonzero(is_complete))
        if rows.row_count:
            self._output.finish_rows([joiner.finished for joiner in joiners], rows, window_ends)

    def _send_rows(
        self, joiners: Sequence[Joiner], rows: JoinedRows, position: int, round_number: int, window_ends: Mapping[int, int]
    ) -> None:
        if not rows.row_count:
            return
        outbox, inputs = self._output.outbox, joiners[0].fetched_inputs
        names = frozenset().union(*(joiner.list_finish_columns(inputs[position:]) for joiner in joiners))
        hashes = to_numbers(combine_chunks(rows.get_column(f"{inputs[position]}.{HOME_HASH}"))).astype(np.int64)
        address = FetchAddress(joiners[0].live.id, position, round_number)
        for target, target_rows in split_rows(rows, find_range_partitions(hashes, outbox.partitions), outbox.partitions.count):
            if target == outbox.sender:
                self._fetch(joiners, target_rows, position, round_number, window_ends)
            else:
                outbox.send_rows(target, address, pack_rows(target_rows, sorted(names)))

    def _fetch(
        self, joiners: Sequence[Joiner], rows: JoinedRows, position: int, round_number: int, window_ends: Mapping[int, int]
    ) -> None:
        index = joiners[0].fetched_inputs[position]
        ids = to_numbers(combine_chunks(rows.get_column(f"{index}.{ROW_REFERENCE}")))
        fetched = self._home_rows.find_rows(joiners, index, ids)
        completed = JoinedRows([fetched, *rows.selections], rows.sets)  # columns that are missing here are NULL in `rows`
        self._complete_rows(joiners, completed, position + 1, round_number, window_ends)
