"""Rows of one stream and one epoch, as the shared operators of a worker process them.

Expressions, keys and slices of a batch are computed once for all operators that use the same ones. Expressions that only ended
queries of an older epoch use are not computed: they are NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import ALL_VALID, combine_chunks, take, to_numbers, valid_mask
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.compute.keys import assign_partitions, encode_keys, find_direct_domain
from headrace.engine.kernels import group as group_kernels
from headrace.model.expression import Column, Expression
from headrace.model.partition_map import PartitionMap
from headrace.planner.slicing import compute_slice_edges

CHUNK_ROWS = 1 << 16  # the working set of the operators for so many rows fits a core's cache


class RowBatch:
    """Rows with event times (`times`, µs, never NULL); each expression is evaluated at most once."""

    def __init__(self, table: pa.Table | pa.RecordBatch, time_column: str, unused: frozenset[Expression] = frozenset()) -> None:
        """Take rows whose event time is not NULL, and the expressions of the epoch's plan that no live query uses."""
        self.table, self._time_column, self._unused = table, time_column, unused
        self.row_count = table.num_rows
        self._max_magnitudes: dict[Expression, int] = {}
        self._columns = {name: table[name] for name in table.schema.names}
        self._evaluator = Evaluator(self._columns, table.num_rows, is_guarded=True)

    @cached_property
    def times(self) -> npt.NDArray[np.int64]:
        """The event time of every row."""
        return to_numbers(combine_chunks(self.table[self._time_column]))

    @cached_property
    def chunks(self) -> list[RowBatch]:
        """The rows in chunks that fit a core's cache, in order and without copying; none is empty."""
        if self.row_count <= CHUNK_ROWS:
            return [self]
        assert isinstance(self.table, pa.Table)
        batches = self.table.to_batches(max_chunksize=CHUNK_ROWS)
        return [RowBatch(batch, self._time_column, self._unused) for batch in batches if batch.num_rows]

    @cached_property
    def min_time(self) -> int:
        """The least event time."""
        return min(int(chunk.times.min()) for chunk in self.chunks)

    @cached_property
    def max_time(self) -> int:
        """The greatest event time."""
        return max(int(chunk.times.max()) for chunk in self.chunks)

    @property
    def evaluate(self) -> Callable[[Expression], pa.Array]:
        """Evaluate an expression over all rows; rows with an error are NULL (see `mask_errors`)."""
        return self._evaluate_used if self._unused else self._evaluator

    @cached_property
    def evaluate_unguarded(self) -> Callable[[Expression], pa.Array]:
        """Evaluate an expression whose errors nobody asks for: NULL on rows with an error, but an exception is raised."""
        return Evaluator(self._columns, self.row_count)

    def _evaluate_used(self, expression: Expression) -> pa.Array:
        return pa.nulls(self.row_count, expression.type) if expression in self._unused else self._evaluator(expression)

    def find_max_magnitude(self, expression: Expression) -> int:
        """Return the greatest magnitude of an integer expression without NULLs."""
        if expression not in self._max_magnitudes:
            values = to_numbers(combine_chunks(self.evaluate(expression)))
            self._max_magnitudes[expression] = max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
        return self._max_magnitudes[expression]

    def mask_errors(self, expression: Expression) -> npt.NDArray[np.bool_] | None:
        """Return the mask of rows on which the expression fails; None if it fails on none."""
        mask = None if expression in self._unused else self._evaluator.errors(expression)
        return None if mask is None else np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)

    def get_error_message(self, expression: Expression) -> str:
        """Return the error message of an expression that fails."""
        return self._evaluator.message(expression)


Integers = npt.NDArray[np.int64]
KeyExpressions = tuple[Expression, ...]
Progressions = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The distinct keys, numbered so that those of partition p are partition_bounds[p] … partition_bounds[p + 1] − 1.

    `key_ids` maps preliminary codes to these numbers. The code is that of `encode_keys`, or key value − `min_key` for direct
    addressing.
    """

    columns: list[pa.Array]
    partition_bounds: Integers
    key_ids: Integers
    min_key: int = 0

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return int(self.partition_bounds[-1])


class KeyEncoder:
    """Key ids and slots of one batch."""

    def __init__(self, batch: RowBatch, partitions: PartitionMap, epoch_start: int) -> None:
        """`partitions` are the key partitions."""
        self._batch, self._partitions, self._epoch_start = batch, partitions, epoch_start
        self._tables: dict[KeyExpressions, tuple[KeyTable, Integers | None]] = {}
        self._edges: dict[Progressions, Integers] = {}
        self._slots: dict[tuple[KeyExpressions, Progressions, int], Integers] = {}

    def get_key_table(self, keys: KeyExpressions) -> KeyTable:
        """Return the distinct keys."""
        return self._encode_keys(keys)[0]

    def compute_key_ids(self, keys: KeyExpressions) -> Integers:
        """Return the key id of every row."""
        table, codes = self._encode_keys(keys)
        if codes is not None:
            return table.key_ids[codes]
        column = combine_chunks(self._batch.evaluate(keys[0]))
        direct_codes = to_numbers(column).astype(np.int64) - table.min_key
        if column.null_count:
            direct_codes[~valid_mask(column)] = len(table.key_ids) - 1
        return table.key_ids[direct_codes]

    def _encode_keys(self, keys: KeyExpressions) -> tuple[KeyTable, Integers | None]:
        """Return the keys and the preliminary code of every row; no codes where values address the table directly."""
        if keys not in self._tables:
            domain = (
                find_direct_domain(self._batch.table[keys[0].name]) if len(keys) == 1 and isinstance(keys[0], Column) else None
            )
            if domain is not None:
                self._tables[keys] = self._order_by_partition([domain[1]], len(domain[1]), domain[0]), None
            else:
                encoded = encode_keys([self._batch.evaluate(k) for k in keys], self._batch.row_count)
                self._tables[keys] = self._order_by_partition(encoded.columns, encoded.count, 0), encoded.codes
        return self._tables[keys]

    def _order_by_partition(self, columns: list[pa.Array], count: int, low: int) -> KeyTable:
        owners = assign_partitions(columns, count, self._partitions)
        order = np.argsort(owners, kind="stable")
        key_ids = np.empty(count, np.int64)
        key_ids[order] = np.arange(count)
        bounds = np.searchsorted(owners[order], np.arange(self._partitions.count + 1)).astype(np.int64)
        return KeyTable([take(c, order) for c in columns], bounds, key_ids, low)

    def find_slice_edges(self, progressions: Progressions) -> Integers:
        """Return the starts of the slices that contain rows of the batch."""
        if progressions not in self._edges:
            self._edges[progressions] = compute_slice_edges(
                self._batch.min_time, self._batch.max_time, lambda: self._batch.times, progressions, self._epoch_start
            )
        return self._edges[progressions]

    def compute_slots(self, keys: KeyExpressions, progressions: Progressions, number: int, offset: int) -> Integers:
        """Return slice · key count + key id for each row of chunk `number`, which begins at row `offset`."""
        cache_key = (keys, progressions, number)
        if cache_key not in self._slots:
            chunk, edges = self._batch.chunks[number], self.find_slice_edges(progressions)
            table, codes = self._encode_keys(keys)
            if codes is None:
                column = combine_chunks(chunk.evaluate(keys[0]))
                valid = valid_mask(column) if column.null_count else ALL_VALID
                self._slots[cache_key] = group_kernels.assign_slots_direct(
                    chunk.times, edges, to_numbers(column), valid, table.min_key, table.key_ids, table.key_count
                )
            else:
                key_ids = table.key_ids[codes[offset : offset + chunk.row_count]]
                self._slots[cache_key] = group_kernels.assign_slots(chunk.times, edges, key_ids, table.key_count)
        return self._slots[cache_key]
