"""Rows on their way through joins: places in tables, not copies, until somebody asks for a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels.expression import Evaluator
from headrace.kernels.sets import Sets
from headrace.plan.join import owner

Integers = npt.NDArray[np.int64]
_FEW = 4  # less than one value in so many is few


class Pieces:
    """A column in several arrays, one after the other; put together only if many of its values are asked for."""

    def __init__(self, arrays: Sequence[pa.Array], few: int = 0) -> None:
        """Take at least one array; if there are at most `few` values for each, they are put together when first asked for."""
        self._arrays = list(arrays)
        self._few = few * len(self._arrays)
        self._ends = np.cumsum([len(array) for array in arrays])

    def __len__(self) -> int:
        """Return how many values there are."""
        return int(self._ends[-1])

    def whole(self) -> pa.Array:
        """Return all values as one array."""
        if len(self._arrays) > 1:
            self._arrays = [pa.concat_arrays(self._arrays)]
            self._ends = self._ends[-1:]
        return self._arrays[0]

    def take(self, places: Integers) -> pa.Array:
        """Return the values at places; NULL at −1."""
        absent = places < 0
        missing = absent if absent.any() else None
        if len(self._arrays) == 1 or len(self) <= self._few or len(places) > len(self) // _FEW:
            return self.whole().take(pa.array(places, mask=missing))
        piece = np.searchsorted(self._ends, np.maximum(places, 0), side="right")
        order = np.argsort(piece, kind="stable")
        cuts = np.searchsorted(piece[order], np.arange(len(self._arrays) + 1))
        found = []
        for number, array in enumerate(self._arrays):
            rows = order[cuts[number] : cuts[number + 1]]
            begin = int(self._ends[number]) - len(array)
            found.append(array.take(pa.array(places[rows] - begin, mask=None if missing is None else missing[rows])))
        back = np.empty(len(places), np.int64)
        back[order] = np.arange(len(places))
        return pa.concat_arrays(found).take(pa.array(back))


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of one or more inputs, named `i.c` as in the plan; `count` rows."""

    columns: Mapping[str, Pieces]
    count: int

    @property
    def inputs(self) -> frozenset[int]:
        """The inputs it has columns of."""
        return frozenset(owner(name)[0] for name in self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some rows of a table, by place; −1 is a row that is not there, None stands for all rows as they are."""

    table: Table
    places: Integers | None = None

    def take(self, rows: Integers) -> Part:
        """Return the part with these rows only; −1 is a row that is not there."""
        if self.places is None:
            return Part(self.table, rows)
        absent = rows < 0
        if not absent.any():
            return Part(self.table, self.places[rows])
        return Part(self.table, np.where(absent, -1, self.places[np.where(absent, 0, rows)]))

    def column(self, name: str) -> pa.Array:
        """Return the values of a column; NULL where there is no row."""
        column = self.table.columns[name]
        return column.whole() if self.places is None else column.take(self.places)


class _Columns(dict[str, pa.Array]):
    """The columns of joined rows, each put together when first asked for."""

    def __init__(self, rows: JoinedRows) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, name: str) -> pa.Array:
        self[name] = self._rows.column(name)
        return self[name]


@dataclass(slots=True, eq=False)
class JoinedRows:
    """Rows of several inputs side by side, each with its query-set; `extra` are further columns."""

    parts: Sequence[Part]
    sets: Sets
    extra: dict[str, pa.Array] = field(default_factory=dict)
    _evaluator: Evaluator | None = None

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.sets)

    def column(self, name: str) -> pa.Array:
        """Return the values of a column; NULL for an input that is not there."""
        if name in self.extra:
            return self.extra[name]
        for part in self.parts:
            if name in part.table.columns:
                return part.column(name)
        raise KeyError(name)

    @property
    def evaluate(self) -> Evaluator:
        """Evaluate expressions over joined columns, each at most once."""
        if self._evaluator is None:
            self._evaluator = Evaluator(_Columns(self), self.count)
        return self._evaluator

    def take(self, rows: Integers, sets: Sets | None = None) -> JoinedRows:
        """Return some of the rows, under other sets if given."""
        return JoinedRows([part.take(rows) for part in self.parts], self.sets[rows] if sets is None else sets)

    def beside(self, own: Integers, others: JoinedRows, theirs: Integers, sets: Sets) -> JoinedRows:
        """Return rows of both side by side, by place; −1 is a row that is not there."""
        return JoinedRows([*(p.take(own) for p in self.parts), *(p.take(theirs) for p in others.parts)], sets)

    def gathered(self, names: Sequence[str]) -> Table:
        """Return the named columns put together: for rows that leave this place."""
        return Table({name: Pieces([self.column(name)]) for name in names}, self.count)


def all_of(table: Table, sets: Sets) -> JoinedRows:
    """Return all rows of a table."""
    return JoinedRows([Part(table)], sets)
