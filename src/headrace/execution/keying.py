"""Keys and slices of a batch, found once for all operators that use the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.kernels import compiled_slots
from headrace.kernels.columns import ALL_VALID, flat, numbers, take, validity
from headrace.kernels.keys import direct_domain, encode, partitions
from headrace.model.expression import Column, Expression
from headrace.sharing.slicing import edges_for

Integers = npt.NDArray[np.int64]
KeyExpressions = tuple[Expression, ...]
Steps = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The distinct keys, numbered so that those of partition p are bounds[p] … bounds[p + 1] − 1.

    `place` maps first numbers (of `encode`, or key value − `low` where the value itself is the number) to these.
    """

    columns: list[pa.Array]
    bounds: Integers
    place: Integers
    low: int = 0

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self.bounds[-1])


class Keying:
    """Key numbers and slots of one batch."""

    def __init__(self, batch: Batch, parts: int, epoch_start: int) -> None:
        """`parts` is the number of key partitions."""
        self._batch, self._parts, self._epoch_start = batch, parts, epoch_start
        self._tables: dict[KeyExpressions, tuple[KeyTable, Integers | None]] = {}
        self._edges: dict[Steps, Integers] = {}
        self._slots: dict[tuple[KeyExpressions, Steps, int], Integers] = {}

    def table(self, keys: KeyExpressions) -> KeyTable:
        """Return the distinct keys."""
        return self._table(keys)[0]

    def codes(self, keys: KeyExpressions) -> Integers:
        """Return the key number of every row."""
        table, first = self._table(keys)
        if first is not None:
            return table.place[first]
        column = flat(self._batch.evaluate(keys[0]))
        numbered = numbers(column).astype(np.int64) - table.low
        if column.null_count:
            numbered[~validity(column)] = len(table.place) - 1
        return table.place[numbered]

    def _table(self, keys: KeyExpressions) -> tuple[KeyTable, Integers | None]:
        """Return the keys and, unless the values themselves are the first numbers, the first number of every row."""
        if keys not in self._tables:
            domain = direct_domain(self._batch.table[keys[0].name]) if len(keys) == 1 and isinstance(keys[0], Column) else None
            if domain is not None:
                self._tables[keys] = self._placed([domain[1]], len(domain[1]), domain[0]), None
            else:
                found = encode([self._batch.evaluate(k) for k in keys], self._batch.rows)
                self._tables[keys] = self._placed(found.columns, found.count, 0), found.codes
        return self._tables[keys]

    def _placed(self, columns: list[pa.Array], count: int, low: int) -> KeyTable:
        parts = partitions(columns, count, self._parts)
        order = np.argsort(parts, kind="stable")
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        bounds = np.searchsorted(parts[order], np.arange(self._parts + 1)).astype(np.int64)
        return KeyTable([take(c, order) for c in columns], bounds, place, low)

    def edges(self, steps: Steps) -> Integers:
        """Return the starts of the slices that rows of the batch lie in."""
        if steps not in self._edges:
            self._edges[steps] = edges_for(
                self._batch.first, self._batch.last, lambda: self._batch.times, steps, self._epoch_start
            )
        return self._edges[steps]

    def slots(self, keys: KeyExpressions, steps: Steps, number: int, offset: int) -> Integers:
        """Return slice · keys + key for each row of a piece, which begins at row `offset`."""
        at = (keys, steps, number)
        if at not in self._slots:
            piece, edges = self._batch.pieces[number], self.edges(steps)
            table, first = self._table(keys)
            if first is None:
                column = flat(piece.evaluate(keys[0]))
                valid = validity(column) if column.null_count else ALL_VALID
                self._slots[at] = compiled_slots.slots_direct(
                    piece.times, edges, numbers(column), valid, table.low, table.place, table.count
                )
            else:
                codes = table.place[first[offset : offset + piece.rows]]
                self._slots[at] = compiled_slots.slots(piece.times, edges, codes, table.count)
        return self._slots[at]
