"""The number of key partitions: a fixed number, or one that follows the back-end and the load ("auto").

Every change repartitions the stored state, which costs about one reading and one writing of it. So a change needs the same
finding in several micro-batches in a row, two changes are some time apart, and the number that load asks for lies between once
and four times the parallelism. The decision is a pure function of recent figures; the log entry of the batch has its outcome.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal, TypeAlias

from headrace.errors import SessionError

MAX_PARTITIONS = 10_000
AUTO: Final = "auto"
PartitionSetting: TypeAlias = int | Literal["auto"]
_LOADS_KEPT = 100
_HELPFUL_RATIO = 0.8  # more partitions helped if the share of the slowest one in the work is at most this part of that before


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

    `seconds` is empty if the batch ran no job. `repartitioned`: the batch changed the number of partitions, so that its times
    say nothing about the load.
    """

    at: float
    partitions: int
    parallelism: int
    seconds: tuple[float, ...] = ()
    repartitioned: bool = False


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A number of partitions and the reason for it; `grown` if load asks for more than one partition for each core."""

    partitions: int
    reason: str = ""
    grown: bool = False


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The key partitions of a session: the number after the last micro-batch, and the number that the next one will use.

    With `is_auto`, the next micro-batch may decide otherwise. `parallelism` is the number of tasks that run at the same time.
    """

    partitions: int
    next: int
    is_auto: bool
    parallelism: int

    def __str__(self) -> str:
        """Return the numbers in a few words."""
        follows = f", {self.next} from the next micro-batch on" if self.next != self.partitions else ""
        return f"{self.partitions} key partition{'s' * (self.partitions != 1)}{follows}{' (auto)' * self.is_auto}"


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
    history: Sequence[PartitionLoad], partitions: int, now: float, policy: ScalingPolicy, *, grown: bool
) -> PartitionChange | None:
    """Return a better number of partitions than the current one, or None.

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
    steady: Sequence[PartitionLoad], partitions: int, policy: ScalingPolicy, *, grown: bool
) -> PartitionChange | None:
    """Return the parallelism of the last batches if it stayed the same; more, up to the limit, where load asked for it."""
    recent = steady[-policy.steady_batches :]
    cores = {load.parallelism for load in recent}
    if len(recent) < policy.steady_batches or len(cores) > 1:
        return None
    (parallelism,) = cores
    most = min(parallelism * policy.max_factor, MAX_PARTITIONS) if grown else parallelism
    number = min(max(partitions, parallelism), most, MAX_PARTITIONS)
    return None if number == partitions else PartitionChange(number, f"parallelism is {parallelism}", grown=number > parallelism)


def _follow_load(
    steady: Sequence[PartitionLoad], earlier: Sequence[PartitionLoad], partitions: int, policy: ScalingPolicy
) -> PartitionChange | None:
    recent = [load for load in steady if load.seconds][-policy.steady_batches :]
    if len(recent) < policy.steady_batches:
        return None
    parallelism, slowest = recent[-1].parallelism, _measure_slowest(recent)
    most = min(parallelism * policy.max_factor, MAX_PARTITIONS)
    reason = _find_overload(recent, slowest, policy)
    if reason and partitions < most and _has_helped(recent, earlier, partitions, policy):
        number = min(2 * partitions, most)
        return PartitionChange(number, reason, grown=number > parallelism)
    if partitions > parallelism and all(4 * max(load.seconds) < policy.relevant_seconds for load in recent):
        number = max(parallelism, partitions // 2)
        return PartitionChange(number, f"reduce tasks take only {slowest * 1000:.0f} ms", grown=number > parallelism)
    return None


def _find_overload(recent: Sequence[PartitionLoad], slowest: float, policy: ScalingPolicy) -> str:
    """Return why every one of these batches asks for more partitions; an empty text if not all do."""
    if all(max(load.seconds) > policy.target_seconds for load in recent):
        return f"reduce tasks take {slowest:.1f} s, more than {policy.target_seconds:g} s"
    ratios = [max(load.seconds) / max(statistics.fmean(load.seconds), 1e-9) for load in recent]
    if min(ratios) > policy.skew and all(max(load.seconds) > policy.relevant_seconds for load in recent):
        return f"one partition takes {statistics.median(ratios):.1f} times as long as the mean"
    return ""


def _has_helped(
    recent: Sequence[PartitionLoad], earlier: Sequence[PartitionLoad], partitions: int, policy: ScalingPolicy
) -> bool:
    """Return False if the slowest partition has about the same share of the work as before the last increase.

    Then a single key has it, which no number of partitions divides.
    """
    if not earlier or earlier[-1].partitions >= partitions:
        return True
    before = list(takewhile(lambda load: load.partitions == earlier[-1].partitions, reversed(earlier)))
    busy = [load for load in before if load.seconds and not load.repartitioned][: policy.steady_batches]
    return not busy or _measure_largest_share(recent) <= _HELPFUL_RATIO * _measure_largest_share(busy)


def _measure_largest_share(loads: Sequence[PartitionLoad]) -> float:
    return statistics.median(max(load.seconds) / max(sum(load.seconds), 1e-9) for load in loads)


def _measure_slowest(loads: Sequence[PartitionLoad]) -> float:
    return statistics.median(max(load.seconds) for load in loads)


class PartitionScaler:
    """Holds the setting of a session and the figures of its last micro-batches. Any thread may set it; one thread plans."""

    def __init__(self, setting: PartitionSetting, policy: ScalingPolicy | None = None) -> None:
        """Start without figures; raises SessionError for an invalid setting."""
        self.setting = parse_partitions(setting)
        self.policy = policy or ScalingPolicy()
        self._loads: deque[PartitionLoad] = deque(maxlen=_LOADS_KEPT)
        self._planned = PartitionChange(0)
        self._grown = False

    def plan(self, partitions: int, parallelism: int, now: float) -> PartitionChange:
        """Return the number for the next batch, given the current number, the back-end's parallelism and the time in seconds."""
        setting, change = self.setting, None
        if not isinstance(setting, int):
            change = choose_partitions(tuple(self._loads), partitions, now, self.policy, grown=self._grown)
        elif setting != partitions:
            change = PartitionChange(setting, "as requested", grown=setting > parallelism)
        self._planned = change or PartitionChange(partitions, grown=self._grown)
        return self._planned

    def record(self, load: PartitionLoad) -> None:
        """Take the figures of a committed batch."""
        if load.partitions == self._planned.partitions:
            self._grown = self._planned.grown
        self._loads.append(load)

    def describe(self, partitions: int, parallelism: int) -> Partitioning:
        """Return the current number with the setting."""
        setting = self.setting
        following = setting if isinstance(setting, int) else partitions
        return Partitioning(partitions, following, setting == AUTO, parallelism)
