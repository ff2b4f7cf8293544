"""The key partitions: a fixed number, or as many as the back-end and the load ask for ("auto").

Load splits only the ranges of hashes that are overloaded, where their load divides, and merges neighbours that are idle; another
parallelism divides all hashes anew. State is repartitioned where ranges change, which costs about one reading and one writing of
it. So a change needs the same finding in several micro-batches in a row, two changes are some time apart, and the number that
load asks for lies between once and four times the parallelism. The decision is a pure function of recent figures; the log entry
of the batch has its outcome.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final, Literal, TypeAlias

from headrace.errors import SessionError
from headrace.model.partition_map import PartitionMap

MAX_PARTITIONS = 10_000
AUTO: Final = "auto"
PartitionSetting: TypeAlias = int | Literal["auto"]
_LOADS_KEPT = 100
_HELPFUL_RATIO = 0.8  # a split helped if the share of a half in the work is at most this part of that of the range before


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """When the number of partitions changes by itself.

    - `steady_batches`: the micro-batches in a row that must show a reason
    - `cooldown_seconds`: the least time between two changes
    - `target_seconds`: a reduce task that takes longer asks for more partitions
    - `skew`: so does a partition that takes longer than this multiple of the mean
    - `relevant_seconds`: reduce tasks below this time are never too skewed; far below it, partitions are merged again
    - `max_factor`: the greatest number of partitions, as a multiple of the parallelism
    """

    steady_batches: int = 5
    cooldown_seconds: float = 30.0
    target_seconds: float = 1.0
    skew: float = 2.0
    relevant_seconds: float = 0.2
    max_factor: int = 4


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The figures of a committed micro-batch: commit time in seconds, and the seconds of reduce tasks by partition.

    `seconds` is empty if the batch ran no job. `repartitioned`: the batch changed the partition map, so that its times say
    nothing about the load. `split_hashes` has the hash that divides the load of a partition, by partition, if it was sampled.
    """

    at: float
    partitions: PartitionMap
    parallelism: int
    seconds: tuple[float, ...] = ()
    repartitioned: bool = False
    split_hashes: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A partition map and the reason for it; `grown` if load asks for more than one partition for each core."""

    partitions: PartitionMap
    reason: str = ""
    grown: bool = False


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The key partitions of a session: the number after the last micro-batch, and the number that the next one will use.

    With `is_auto`, the next micro-batch may decide otherwise. `parallelism` is the number of tasks that run at the same time.
    `shares` has the part of all hashes of keys that each partition has: equal, unless overloaded ranges were split.
    """

    partitions: int
    next: int
    is_auto: bool
    parallelism: int
    shares: tuple[float, ...]

    def __str__(self) -> str:
        """Return the numbers in a few words."""
        follows = f", {self.next} from the next micro-batch on" if self.next != self.partitions else ""
        number = f"{self.partitions} key partition{'s' * (self.partitions != 1)}"
        return f"{number}{self._format_shares()}{follows}{' (auto)' * self.is_auto}"

    def _format_shares(self) -> str:
        least, most = min(self.shares), max(self.shares)
        return f" of {least:.1%} to {most:.1%} of the hashes of keys" if most > least * (1 + 1e-6) else ""


def parse_partitions(setting: object) -> PartitionSetting:
    """Return a valid setting; raises SessionError for anything but "auto" and an integer from 1 to 10,000."""
    if setting == AUTO:
        return AUTO
    if isinstance(setting, bool) or not isinstance(setting, int) or not 1 <= setting <= MAX_PARTITIONS:
        raise SessionError(
            f"invalid partition count {setting!r}", hint=f"give an integer from 1 to {MAX_PARTITIONS}, or '{AUTO}'"
        )
    return setting


def choose_partitions(
    history: Sequence[PartitionLoad], partitions: PartitionMap, now: float, policy: ScalingPolicy, *, grown: bool
) -> PartitionChange | None:
    """Return a better partition map than the current one, or None.

    `history` holds the figures of committed micro-batches, oldest first. `grown` says that load asked for the current number.
    """
    current = list(takewhile(lambda load: load.partitions == partitions, reversed(history)))[::-1]
    earlier = history[: len(history) - len(current)]
    if not current or (earlier and now - current[0].at < policy.cooldown_seconds):
        return None
    steady = [load for load in current if not load.repartitioned]
    change = _follow_parallelism(steady, partitions, policy, grown=grown) or _follow_load(steady, earlier, partitions, policy)
    return None if change is None or change.partitions == partitions else change


def _follow_parallelism(
    steady: Sequence[PartitionLoad], partitions: PartitionMap, policy: ScalingPolicy, *, grown: bool
) -> PartitionChange | None:
    """Return a partition for each core if their number stayed the same; more, up to the limit, where load asked for it."""
    recent = steady[-policy.steady_batches :]
    cores = {load.parallelism for load in recent}
    if len(recent) < policy.steady_batches or len(cores) > 1:
        return None
    (parallelism,) = cores
    most = min(parallelism * policy.max_factor, MAX_PARTITIONS) if grown else parallelism
    number = min(max(partitions.count, parallelism), most, MAX_PARTITIONS)
    if number == partitions.count:
        return None
    return PartitionChange(PartitionMap(number), f"parallelism is {parallelism}", grown=number > parallelism)


def _follow_load(
    steady: Sequence[PartitionLoad], earlier: Sequence[PartitionLoad], partitions: PartitionMap, policy: ScalingPolicy
) -> PartitionChange | None:
    recent = [load for load in steady if load.seconds][-policy.steady_batches :]
    if len(recent) < policy.steady_batches:
        return None
    parallelism = recent[-1].parallelism
    room = min(parallelism * policy.max_factor, MAX_PARTITIONS) - partitions.count
    overloaded = [number for number in find_overloaded(recent, policy) if _is_divisible(number, recent, earlier, policy)]
    if overloaded and room > 0:
        return _split_ranges(recent[-1], overloaded[:room], partitions, _explain_overload(recent, policy))
    if partitions.count > parallelism and all(4 * max(load.seconds) < policy.relevant_seconds for load in recent):
        number = max(parallelism, partitions.count // 2)
        merged = partitions.merge(choose_neighbours(recent[-1], partitions.count - number))
        reason = f"reduce tasks take only {_measure_slowest(recent) * 1000:.0f} ms"
        return PartitionChange(merged, reason, grown=merged.count > parallelism)
    return None


def find_overloaded(recent: Sequence[PartitionLoad], policy: ScalingPolicy) -> list[int]:
    """Return the partitions that took too long in every one of these batches, the slowest first."""
    limits = [_find_limit(load, policy) for load in recent]
    slow = [
        (-statistics.median(times), partition)
        for partition, times in enumerate(zip(*(load.seconds for load in recent), strict=True))
        if all(seconds > limit for seconds, limit in zip(times, limits, strict=True))
    ]
    return [partition for _, partition in sorted(slow)]


def _find_limit(load: PartitionLoad, policy: ScalingPolicy) -> float:
    """Return the seconds above which a reduce task of a batch takes too long."""
    return min(policy.target_seconds, max(policy.relevant_seconds, policy.skew * statistics.fmean(load.seconds)))


def _split_ranges(
    load: PartitionLoad, overloaded: Sequence[int], partitions: PartitionMap, reason: str
) -> PartitionChange | None:
    """Return the map with overloaded ranges split where their load divides; None if none of them does."""
    found = {partition: load.split_hashes[partition] for partition in overloaded if load.split_hashes}
    ranges = {item.partition: item for item in partitions.list_ranges()}
    places = {
        partition: place
        for partition, place in found.items()
        if place is not None and ranges[partition].start < place < ranges[partition].end
    }
    if not places:
        return None
    names = ", ".join(map(str, sorted(places)))
    split = partitions.split(places)
    return PartitionChange(split, f"{reason}; split {names}", grown=split.count > load.parallelism)


def choose_neighbours(load: PartitionLoad, number: int) -> list[tuple[int, int]]:
    """Return pairs of partitions with neighbouring ranges, up to a number of them, those with the least work first."""
    owners = [item.partition for item in load.partitions.list_ranges()]
    pairs = sorted(pairwise(owners), key=lambda pair: (load.seconds[pair[0]] + load.seconds[pair[1]], pair))
    chosen: list[tuple[int, int]] = []
    used: set[int] = set()
    for pair in pairs:
        if len(chosen) < number and used.isdisjoint(pair):
            chosen.append(pair)
            used.update(pair)
    return chosen


def _explain_overload(recent: Sequence[PartitionLoad], policy: ScalingPolicy) -> str:
    slowest = _measure_slowest(recent)
    if all(max(load.seconds) > policy.target_seconds for load in recent):
        return f"reduce tasks take {slowest:.1f} s, more than {policy.target_seconds:g} s"
    ratios = [max(load.seconds) / max(statistics.fmean(load.seconds), 1e-9) for load in recent]
    return f"one partition takes {statistics.median(ratios):.1f} times as long as the mean"


def _is_divisible(
    partition: int, recent: Sequence[PartitionLoad], earlier: Sequence[PartitionLoad], policy: ScalingPolicy
) -> bool:
    """Return False if a partition has about the same share of the work as the range that it was split from.

    Then hashes of keys do not divide the work: it is that of a single key, or of stateless queries.
    """
    own = _find_range(recent[-1].partitions, partition)
    before = next((load.partitions for load in reversed(earlier) if own not in _list_spans(load.partitions)), None)
    if before is None:
        return True
    parent = next((item for item in before.list_ranges() if item.start <= own[0] and own[1] <= item.end), None)
    busy = [load for load in reversed(earlier) if load.partitions == before and load.seconds and not load.repartitioned]
    if parent is None or not busy:
        return True
    share_before = _measure_share(busy[: policy.steady_batches], parent.partition)
    return _measure_share(recent, partition) <= _HELPFUL_RATIO * share_before


def _find_range(partitions: PartitionMap, partition: int) -> tuple[int, int]:
    return next((item.start, item.end) for item in partitions.list_ranges() if item.partition == partition)


def _list_spans(partitions: PartitionMap) -> set[tuple[int, int]]:
    return {(item.start, item.end) for item in partitions.list_ranges()}


def _measure_share(loads: Sequence[PartitionLoad], partition: int) -> float:
    return statistics.median(load.seconds[partition] / max(sum(load.seconds), 1e-9) for load in loads)


def _measure_slowest(loads: Sequence[PartitionLoad]) -> float:
    return statistics.median(max(load.seconds) for load in loads)


class PartitionScaler:
    """Holds the setting of a session and the figures of its last micro-batches. Any thread may set it; one thread plans."""

    def __init__(self, setting: PartitionSetting, policy: ScalingPolicy | None = None) -> None:
        """Start without figures; raises SessionError for an invalid setting."""
        self.setting = parse_partitions(setting)
        self.policy = policy or ScalingPolicy()
        self._loads: deque[PartitionLoad] = deque(maxlen=_LOADS_KEPT)
        self._planned = PartitionChange(PartitionMap(1))
        self._grown = False

    @property
    def samples_load(self) -> bool:
        """Whether the next batch shall find out where to divide its load: a partition of the last one took too long."""
        loads = [load for load in self._loads if load.seconds][-1:]
        return self.setting == AUTO and bool(find_overloaded(loads, self.policy) if loads else ())

    def plan(self, partitions: PartitionMap, parallelism: int, now: float) -> PartitionChange:
        """Return the map for the next batch, given the current map, the back-end's parallelism and the time in seconds."""
        setting, change = self.setting, None
        if not isinstance(setting, int):
            change = choose_partitions(tuple(self._loads), partitions, now, self.policy, grown=self._grown)
        elif setting != partitions.count:
            change = PartitionChange(PartitionMap(setting), "as requested", grown=setting > parallelism)
        self._planned = change or PartitionChange(partitions, grown=self._grown)
        return self._planned

    def record(self, load: PartitionLoad) -> None:
        """Take the figures of a committed batch."""
        if load.partitions == self._planned.partitions:
            self._grown = self._planned.grown
        self._loads.append(load)

    def describe(self, partitions: PartitionMap, parallelism: int) -> Partitioning:
        """Return the current number with the setting."""
        setting = self.setting
        following = setting if isinstance(setting, int) else partitions.count
        return Partitioning(partitions.count, following, setting == AUTO, parallelism, partitions.list_shares())
