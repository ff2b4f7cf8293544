"""Routing of rows of joins: the addresses of rows between stages and levels, and the partitions that rows belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.joins.joined_rows import Integers, JoinedRows
from headrace.engine.joins.segment import RowSegment
from headrace.engine.kernels import join as join_kernels
from headrace.engine.repartition import StateOrigin
from headrace.model.expression import Expression
from headrace.model.partition_map import PartitionMap
from headrace.model.record import record
from headrace.planner.join.sliding_join_plan import ProbeRouting, RoutingKind


@record("buffer-address")
@dataclass(frozen=True, slots=True)
class BufferAddress:
    """A slice of a join buffer; `operator` is its index in the plan of the epoch."""

    stream: str
    epoch: int
    operator: int
    slice_start: int


@record("step-address")
@dataclass(frozen=True, slots=True)
class StepAddress:
    """Step `depth` of the chain of a window join, in a round: rows that are joined up to the step arrive there."""

    query_id: int
    depth: int
    round_number: int


@record("leaf-address")
@dataclass(frozen=True, slots=True)
class LeafAddress:
    """The build side of step `depth` of the chain of a window join, in a round."""

    query_id: int
    depth: int
    round_number: int


@record("store-address")
@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A state store of sliding joins, and the level at which rows are inserted."""

    store: int
    level: int


@record("probe-address")
@dataclass(frozen=True, slots=True)
class ProbeAddress:
    """A probe of sliding joins."""

    probe: int


@record("fetch-address")
@dataclass(frozen=True, slots=True)
class FetchAddress:
    """The home buffer of an input of a window join, in a round: complete rows arrive there to get its columns.

    `position` is that of the input among those that the query fetches.
    """

    query_id: int
    position: int
    round_number: int


@record("home-address")
@dataclass(frozen=True, slots=True)
class HomeAddress:
    """The home buffer of a stream and slot at a later level of the same partition."""

    stream: str
    slot: int


@record("waiting-address")
@dataclass(frozen=True, slots=True)
class WaitingAddress:
    """Rows of an outer relation that wait for what probes in other partitions find, by the number of the `UnmatchedStep`."""

    step: int


@record("matched-address")
@dataclass(frozen=True, slots=True)
class MatchedAddress:
    """Which of the waiting rows of an `UnmatchedStep` have a partner, for which queries."""

    step: int


_WindowJoinAddress = BufferAddress | StepAddress | LeafAddress | FetchAddress | HomeAddress
Address = _WindowJoinAddress | StoreAddress | ProbeAddress | WaitingAddress | MatchedAddress
AnyAddress = TypeVar(
    "AnyAddress",
    BufferAddress,
    StepAddress,
    LeafAddress,
    FetchAddress,
    HomeAddress,
    StoreAddress,
    ProbeAddress,
    WaitingAddress,
    MatchedAddress,
)
AnyRows = TypeVar("AnyRows", RowSegment, JoinedRows)


@record("routed-rows")
@dataclass(frozen=True, slots=True, eq=False)
class RoutedRows:
    """Rows on their way to an operator in another stage, level or partition."""

    address: Address
    rows: RowSegment


def select_routed(routed_rows: Iterable[RoutedRows], kind: type[AnyAddress]) -> Iterator[tuple[AnyAddress, RowSegment]]:
    """Yield (address, rows) for the rows with one kind of address."""
    for routed in routed_rows:
        if isinstance(routed.address, kind):
            yield routed.address, routed.rows


def find_partitions(
    keys: Sequence[Expression] | None, rows: RowSegment | JoinedRows, sender: int, partitions: PartitionMap
) -> Integers:
    """Return the partition of each row: that of its keys; without keys (None), rows are spread evenly."""
    if keys is None:
        return (np.arange(rows.row_count) + sender) % partitions.count
    return assign_partitions([combine_chunks(rows.evaluate(key)) for key in keys], rows.row_count, partitions)


def make_key_selector(keys: Sequence[Expression], rows: RowSegment) -> Callable[[Integers], list[pa.Array]]:
    """Return a function that evaluates keys on some of the rows."""

    def select_keys(row_ids: Integers) -> list[pa.Array]:
        selected = rows.take(row_ids)
        return [combine_chunks(selected.evaluate(key)) for key in keys]

    return select_keys


def split_rows(
    rows: AnyRows, targets: Integers, target_count: int, row_ids: Integers | None = None
) -> Iterator[tuple[int, AnyRows]]:
    """Yield (target, rows) for each target that has rows; those with a target of −1 are dropped.

    The targets are those of the rows at `row_ids`, by default of all rows.
    """
    starts, order = join_kernels.group_rows_by_key(targets, target_count)
    order = order if row_ids is None else row_ids[order]
    for target in np.flatnonzero(np.diff(starts)).tolist():
        yield target, rows.take(order[starts[target] : starts[target + 1]])


def route_to_probe(routing: ProbeRouting, rows: AnyRows, sender: int, partitions: PartitionMap) -> Iterator[tuple[int, AnyRows]]:
    """Yield (partition, rows) on the way to a probe; rows with a NULL key match nothing and are dropped."""
    if routing.kind is RoutingKind.BROADCAST:
        yield from ((target, rows) for target in range(partitions.count))
    elif routing.kind is RoutingKind.LOCAL:
        yield sender, rows
    else:
        assert routing.key is not None
        values = combine_chunks(rows.evaluate(routing.key))
        targets = assign_partitions([values], rows.row_count, partitions)
        if values.null_count:
            targets[np.asarray(values.is_null())] = -1
        yield from split_rows(rows, targets, partitions.count)


def route_to_store(key: Expression | None, rows: AnyRows, sender: int, partitions: PartitionMap) -> Iterator[tuple[int, AnyRows]]:
    """Yield (partition, rows) for a state store: by its key, or evenly if it has none."""
    if partitions.count == 1:
        yield 0, rows
    else:
        targets = find_partitions(None if key is None else (key,), rows, sender, partitions)
        yield from split_rows(rows, targets, partitions.count)


def take_share(keys: Sequence[Expression] | None, segment: RowSegment, source: int, origin: StateOrigin) -> RowSegment:
    """Return the rows of stored state of the partition `source` that belong to another one, after a change of the partition map.

    Rows without keys are spread evenly over the partitions that it has become.
    """
    if keys is None:
        heirs = np.array(origin.heirs[source], np.int64)
        owners = heirs[np.arange(segment.row_count) % len(heirs)]
    else:
        owners = find_partitions(keys, segment, source, origin.partitions)
    return segment.take(np.flatnonzero(owners == origin.partition))
