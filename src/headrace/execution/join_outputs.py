"""Where joined rows end up: in results, in groups of an aggregation, or in what goes on to the next level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution import join_groups
from headrace.execution.joined_rows import JoinedRows
from headrace.execution.joiner import Joiner
from headrace.execution.onward import Moved, Onward
from headrace.execution.result import Failures, Results
from headrace.execution.sessions import Runs
from headrace.kernels import compiled_join
from headrace.kernels.columns import flat, from_numbers
from headrace.kernels.keys import partitions
from headrace.kernels.sets import set_of
from headrace.model.expression import TRUE, Expression
from headrace.model.schema import TIMESTAMP
from headrace.plan.logical import WINDOW_END, WINDOW_START
from headrace.sharing.joining import Step

Integers = npt.NDArray[np.int64]
_MANY_PARTS = 16
Groups = dict[tuple[object, ...], tuple[Joiner, list[Runs]]]


@dataclass(slots=True)
class Outputs:
    """All that one partition of a level gives out; `parts` is the number of partitions.

    `relieve` is called after results were added: whoever gives them out may take them.
    """

    partition: int
    parts: int
    results: Results
    failures: Failures
    relieve: Callable[[], None]
    rows: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _onward: dict[int, Onward] = field(default_factory=dict)
    _groups: Groups = field(default_factory=dict)

    def to(self, partition: int) -> Onward:
        """Return what goes on to a partition."""
        return self._onward.setdefault(partition, Onward(self.partition))

    def add_groups(self, joiner: Joiner, found: Runs) -> None:
        """Take groups made here; they go on to the partition of their key."""
        parts = self._groups.setdefault(joiner.tail, (joiner, []))[1]
        parts.append(found)
        if len(parts) > _MANY_PARTS:  # a hot key has many pairs and few groups
            parts[:] = [join_groups.merge(joiner.needs, parts)]

    def count(self, rows: Mapping[tuple[int, int], int]) -> None:
        """Note the rows of one round, by query and length of the path."""
        for at, count in rows.items():
            before, rounds = self.rows.get(at, (0, 0))
            self.rows[at] = (before + count, rounds + 1)

    def onward(self) -> dict[int, Onward]:
        """Return what goes on, by partition."""
        for joiner, parts in self._groups.values():
            for place, found in join_groups.split(join_groups.merge(joiner.needs, parts), self.parts):
                self.to(place).groups.append((joiner.live.id, found))
        self._groups = {}
        return self._onward

    def finish_groups(self, groups: Iterable[tuple[Joiner, Runs]]) -> None:
        """Turn groups of all partitions, now together, into results."""
        by_tail: Groups = {}
        for joiner, found in groups:
            by_tail.setdefault(joiner.tail, (joiner, []))[1].append(found)
        for joiner, parts in by_tail.values():
            merged = join_groups.merge(joiner.needs, parts)
            join_groups.emit(joiner.aggregate, joiner.plan.span, merged, self.results, self.failures)


class RoundOutputs:
    """Takes the rows of one round, in which each query (by its bit) has the window that ends at `ends`."""

    def __init__(self, outputs: Outputs, number: int, ends: Mapping[int, int], width: int) -> None:
        """Give rows to `outputs`; `number` is that of the round, `width` that of query-sets, in words."""
        self._outputs, self._number, self._ends, self._width = outputs, number, ends, width

    def move(self, joiners: Sequence[Joiner], depth: int, step: Step, rows: JoinedRows) -> None:
        """Send joined rows to the partitions of the keys of the next step."""
        names = sorted(frozenset().union(*(joiner.columns(joiner.path[:depth]) for joiner in joiners)))
        keys = [flat(rows.evaluate(key)) for key in step.left_keys]
        places = partitions(keys, rows.count, self._outputs.parts)
        have = {name for part in rows.parts for name in part.table.columns}
        for place in np.unique(places).tolist():
            picked = rows.take(np.flatnonzero(places == place))
            moved = Moved(joiners[0].live.id, depth, self._number, picked.gathered([n for n in names if n in have]), picked.sets)
            self._outputs.to(place).rows.append(moved)

    def finish(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        """Give joined rows to the queries whose chain ends here: filter, then project or group."""
        by_tail: dict[tuple[object, ...], list[Joiner]] = defaultdict(list)
        for joiner in joiners:
            by_tail[joiner.tail].append(joiner)
        for alike in by_tail.values():
            self._finish_alike(alike, rows)

    def _finish_alike(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        plan = joiners[0].plan
        bits, places = compiled_join.members(rows.sets, set_of([j.bit for j in joiners], self._width))
        if not bits.size:
            return
        ids = np.full(self._width * 64, -1, np.int64)
        last = np.zeros(self._width * 64, np.int64)
        for joiner in joiners:
            ids[joiner.bit], last[joiner.bit] = joiner.live.id, self._ends[joiner.bit]
        queries, until = ids[bits], last[bits]
        if plan.predicate != TRUE:
            self._note(rows, plan.predicate, places, queries)
            holds = np.asarray(flat(rows.evaluate(plan.predicate)).fill_null(False))[places]
            places, queries, until = places[holds], queries[holds], until[holds]
        if not places.size:
            return
        found = rows.take(places)
        found.extra[WINDOW_START.name] = from_numbers(until - plan.span, TIMESTAMP)
        found.extra[WINDOW_END.name] = from_numbers(until, TIMESTAMP)
        everything = np.arange(len(places))
        if plan.grouping is None:
            for expression in plan.output:
                self._note(found, expression, everything, queries)
            columns = [flat(found.evaluate(expression)) for expression in plan.output]
            self._outputs.results.add(queries, pa.RecordBatch.from_arrays(columns, schema=plan.schema.to_arrow()))
            self._outputs.relieve()
            return
        needs = joiners[0].needs
        for expression in (*plan.grouping.keys, *(arg for call in plan.grouping.aggregates for arg in call.args)):
            self._note(found, expression, everything, queries)
        keys = [flat(found.evaluate(key)) for key in plan.grouping.keys]
        arguments = [[found.evaluate(arg) for arg in need.args] for need in needs]
        self._outputs.add_groups(joiners[0], join_groups.group(needs, queries, until, keys, arguments))

    def _note(self, rows: JoinedRows, expression: Expression, places: Integers, queries: Integers) -> None:
        bad = rows.evaluate.errors(expression)
        if bad is not None:
            mask = np.asarray(bad.to_numpy(zero_copy_only=False), np.bool_)[places]
            self._outputs.failures.add_rows(queries[mask], rows.evaluate.message(expression))
