"""Joined rows on their way from store to store, each with the set of queries it still matters to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.joined_rows import JoinedRows, Pieces, Table, all_of
from headrace.kernels.columns import flat, numbers
from headrace.kernels.expression import Evaluator
from headrace.kernels.sets import Sets, widened
from headrace.sharing.multiway.asked import time_of

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class Tuples:
    """Rows with the joined columns that are still needed, and the event time of each relation.

    `fresh` has, as bits by rank, the relations of which a row of this batch is in them.
    """

    rows: JoinedRows
    fresh: Bits

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.rows.count

    @property
    def sets(self) -> Sets:
        """The query-set of each row."""
        return self.rows.sets

    @property
    def evaluate(self) -> Evaluator:
        """Evaluate expressions over joined columns."""
        return self.rows.evaluate

    def times(self, relation: str) -> Integers:
        """Return the event times of the rows of a relation."""
        return numbers(flat(self.rows.column(time_of(relation))))

    def take(self, places: Integers, sets: Sets | None = None) -> Tuples:
        """Return some of the rows, under other sets if given."""
        return Tuples(self.rows.take(places, sets), self.fresh[places])

    def packed(self, names: Iterable[str]) -> Packed:
        """Return the rows with these columns, ready to travel."""
        have = [name for name in names if self.has(name)]
        return Packed({name: flat(self.rows.column(name)) for name in have}, self.sets, self.fresh)

    def has(self, name: str) -> bool:
        """Tell whether rows have a column."""
        return any(name in part.table.columns for part in self.rows.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Rows that travel: columns put together, sets, and what is new in them."""

    columns: dict[str, pa.Array]
    sets: Sets
    fresh: Bits

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """About how much memory they take."""
        return int(self.sets.nbytes + self.fresh.nbytes + sum(column.nbytes for column in self.columns.values()))

    def take(self, places: Integers) -> Packed:
        """Return some of the rows, copied."""
        wanted = pa.array(places)
        columns = {name: column.take(wanted) for name, column in self.columns.items()}
        return Packed(columns, self.sets[places], self.fresh[places])


def unpacked(parts: Sequence[Packed], width: int) -> Tuples:
    """Return rows that came from several places as one; `width` is that of query-sets, in words."""
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    sets = np.concatenate([widened(part.sets, width) for part in parts])
    table = Table({name: Pieces([part.columns[name] for part in parts]) for name in names}, len(sets))
    return Tuples(all_of(table, sets), np.concatenate([part.fresh for part in parts]))
