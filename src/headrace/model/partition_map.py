"""The partition map: which key partition has which range of the hashes of keys.

    0 ─────────── bounds[0] ─────────── bounds[1] ── … ── 2³¹
      owners[0]              owners[1]                …

Every partition has one range. A map of equal ranges is its number of partitions; only where an overloaded range was split, or
neighbours were merged, does a map list its ranges. The state of a range that two maps have in common need not be repartitioned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from headrace.model.record import record

HASH_BITS = 31
HASH_END = 1 << HASH_BITS


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """The hashes `start` … `end` − 1, and the partition that has their keys."""

    start: int
    end: int
    partition: int

    @property
    def share(self) -> float:
        """The part of all hashes that the range has."""
        return (self.end - self.start) / HASH_END


@record("partition-map")
@dataclass(frozen=True, slots=True)
class PartitionMap:
    """Partitions 0 … count − 1 and their ranges; without `bounds` the ranges are equal and in the order of the partitions."""

    count: int
    bounds: tuple[int, ...] = ()  # the ends of all ranges but the last one
    owners: tuple[int, ...] = ()  # the partition of each range

    def __post_init__(self) -> None:
        """Check that every partition has one range, which is not empty."""
        assert self.count > 0, "a partition map needs a partition"
        if self.bounds or self.owners:
            spans = pairwise((0, *self.bounds, HASH_END))
            assert all(low < high for low, high in spans), "a range of hashes is empty"
            assert len(self.bounds) == self.count - 1, "a partition map needs a range for each partition"
            assert sorted(self.owners) == list(range(self.count)), "a partition has one range"

    @classmethod
    def of_ranges(cls, ranges: Iterable[HashRange]) -> PartitionMap:
        """Return the map with these ranges, which cover all hashes."""
        ordered = sorted(ranges)
        equal = cls(len(ordered))
        if tuple(ordered) == equal.list_ranges():
            return equal
        return cls(len(ordered), tuple(item.end for item in ordered[:-1]), tuple(item.partition for item in ordered))

    @property
    def is_equal(self) -> bool:
        """Whether all ranges are equal."""
        return not self.bounds

    def list_ranges(self) -> tuple[HashRange, ...]:
        """Return the ranges in the order of hashes."""
        return _list_ranges(self)

    def list_shares(self) -> tuple[float, ...]:
        """Return the part of all hashes that each partition has."""
        return tuple(item.share for item in sorted(self.list_ranges(), key=lambda item: item.partition))

    def split(self, places: Mapping[int, int]) -> PartitionMap:
        """Return the map with ranges cut in two: by partition, the first hash of the upper part, which is a new partition."""
        ranges: list[HashRange] = []
        following = self.count
        for item in self.list_ranges():
            place = places.get(item.partition)
            if place is None:
                ranges.append(item)
                continue
            ranges += [HashRange(item.start, place, item.partition), HashRange(place, item.end, following)]
            following += 1
        return PartitionMap.of_ranges(ranges)

    def merge(self, pairs: Sequence[tuple[int, int]]) -> PartitionMap:
        """Return the map with the ranges of pairs of neighbours as one; the last partitions take the numbers that become free."""
        merged_into = {max(pair): min(pair) for pair in pairs}
        count = self.count - len(pairs)
        free = iter(sorted(number for number in merged_into if number < count))
        renamed = {number: next(free) for number in range(count, self.count) if number not in merged_into}
        ranges: list[HashRange] = []
        for item in self.list_ranges():
            number = merged_into.get(item.partition, item.partition)
            number = renamed.get(number, number)
            if ranges and ranges[-1].partition == number:
                ranges[-1] = HashRange(ranges[-1].start, item.end, number)
            else:
                ranges.append(HashRange(item.start, item.end, number))
        return PartitionMap.of_ranges(ranges)


@lru_cache(maxsize=64)  # every micro-batch asks several times for those of the same few maps
def _list_ranges(partitions: PartitionMap) -> tuple[HashRange, ...]:
    if partitions.is_equal:
        edges = [-(-number * HASH_END // partitions.count) for number in range(partitions.count + 1)]
        return tuple(HashRange(edges[number], edges[number + 1], number) for number in range(partitions.count))
    spans = pairwise((0, *partitions.bounds, HASH_END))
    return tuple(HashRange(start, end, owner) for (start, end), owner in zip(spans, partitions.owners, strict=True))
