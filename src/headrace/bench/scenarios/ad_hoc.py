"""Ad-hoc schedules: how many queries are added and removed at which second of a run. The scenario chooses which queries.

    live        ┌──┬──┬── until        ─────┬─────┬─────   queries       events: as written
            ┌──┘                            │     │
         ───┘  sc1                         sc2: removes as many as it adds

Seconds count from the start of the driver. Nothing changes at or after the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from itertools import count as numbers
from typing import Any, Protocol

from headrace.errors import HeadraceError

_SHORTEST_TICK_SECONDS, _ROUNDING = 0.1, 1e-6


@dataclass(frozen=True, slots=True)
class QueryChange:
    """A change of the live queries at second `at`: add `add` queries, remove the `remove` longest-lived ones."""

    at: float
    add: int = 0
    remove: int = 0

    def __post_init__(self) -> None:
        """Reject negative values and a change that adds and removes nothing."""
        if self.at < 0 or self.add < 0 or self.remove < 0 or self.add + self.remove == 0:
            raise HeadraceError(f"invalid change at second {self.at}: adds {self.add} and removes {self.remove} queries")


class AdHocSchedule(Protocol):
    """A schedule of query changes; `initial` is the number of queries at the start of the run."""

    @property
    def initial(self) -> int:
        """The number of queries at the start."""

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Return the changes within a run of `seconds`, in time order."""


@dataclass(frozen=True, slots=True)
class Sc1Schedule:
    """Scenario SC1: start with `initial` queries, add `per_second` each second up to `queries`, then keep them."""

    queries: int
    per_second: float
    initial: int = 1

    def __post_init__(self) -> None:
        """Reject a schedule that never reaches `queries`."""
        _require_positive(self, "queries", "per_second", "initial")
        if self.initial > self.queries:
            raise HeadraceError(f"initial is {self.initial}, more than queries = {self.queries}")

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Add whole queries once a second, or less often if `per_second` is below 1."""
        ticks = list(_iter_ticks(max(1.0, 1 / self.per_second), seconds))
        live = [self.initial, *(min(self.queries, self.initial + round(at * self.per_second)) for at in ticks)]
        steps = zip(ticks, pairwise(live), strict=True)
        return tuple(QueryChange(at, add=after - before) for at, (before, after) in steps if after > before)


@dataclass(frozen=True, slots=True)
class Sc2Schedule:
    """Scenario SC2: `queries` queries at any time; every `every` seconds replace all of them with new ones."""

    queries: int
    every: float

    def __post_init__(self) -> None:
        """Reject a schedule that never changes."""
        _require_positive(self, "queries", "every")

    @property
    def initial(self) -> int:
        """The number of queries at the start."""
        return self.queries

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Replace all queries at every tick."""
        return tuple(QueryChange(at, self.queries, self.queries) for at in _iter_ticks(self.every, seconds))


@dataclass(frozen=True, slots=True)
class TrafficSchedule:
    """Make `per_second` requests each second, evenly: one half adds queries, the other removes the oldest ones.

    `queries` are live at any time, beside the first `kept` ones, which stay and show how requests affect running queries.
    """

    queries: int
    per_second: float
    kept: int = 5

    def __post_init__(self) -> None:
        """Reject a schedule that never changes."""
        _require_positive(self, "queries", "per_second", "kept")

    @property
    def initial(self) -> int:
        """The number of queries at the start."""
        return self.queries + self.kept

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Replace whole queries at every tick, at most `queries` of them."""
        ticks = list(_iter_ticks(max(_SHORTEST_TICK_SECONDS, 2 / self.per_second), seconds))
        replaced = [0, *(int(at * self.per_second / 2 + _ROUNDING) for at in ticks)]
        counts = ((at, min(self.queries, after - before)) for at, (before, after) in zip(ticks, pairwise(replaced), strict=True))
        return tuple(QueryChange(at, count, count) for at, count in counts if count)


@dataclass(frozen=True, slots=True)
class AddOnlySchedule:
    """Start with `initial` queries and add `add` every `every` seconds, up to `queries`."""

    queries: int
    every: float
    add: int = 1
    initial: int = 1

    def __post_init__(self) -> None:
        """Reject a schedule that never changes."""
        _require_positive(self, "queries", "every", "add", "initial")

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Add queries at every tick until `queries` are live."""
        ticks = zip(_iter_ticks(self.every, seconds), range(self.initial, self.queries, self.add), strict=False)
        return tuple(QueryChange(at, add=min(self.add, self.queries - live)) for at, live in ticks)


@dataclass(frozen=True, slots=True)
class RemoveOnlySchedule:
    """Start with `queries` queries and remove `remove` every `every` seconds, down to 1."""

    queries: int
    every: float
    remove: int = 1

    def __post_init__(self) -> None:
        """Reject a schedule that never changes."""
        _require_positive(self, "queries", "every", "remove")

    @property
    def initial(self) -> int:
        """The number of queries at the start."""
        return self.queries

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Remove queries at every tick until one is left."""
        ticks = zip(_iter_ticks(self.every, seconds), range(self.queries, 1, -self.remove), strict=False)
        return tuple(QueryChange(at, remove=min(self.remove, live - 1)) for at, live in ticks)


@dataclass(frozen=True, slots=True)
class EventSchedule:
    """Explicit changes: [second, queries added, queries removed], in time order."""

    initial: int
    events: tuple[tuple[float, int, int], ...]

    def __post_init__(self) -> None:
        """Reject changes out of time order and the removal of more queries than are live."""
        _require_positive(self, "initial")
        changes = [QueryChange(*event) for event in self.events]
        if any(earlier.at > later.at for earlier, later in pairwise(changes)):
            raise HeadraceError("events are not in order of time")
        lowest = min(accumulate((change.add - change.remove for change in changes), initial=self.initial))
        if lowest < 0:
            raise HeadraceError(
                f"events remove {-lowest} more queries than are live", hint="begin with more queries: raise initial"
            )

    def list_changes(self, seconds: float) -> tuple[QueryChange, ...]:
        """Return the changes within the run."""
        return tuple(QueryChange(*event) for event in self.events if event[0] < seconds)


_FRACTIONAL_FIELDS = {"per_second", "every"}
SCHEDULE_KINDS: Mapping[str, type[Any]] = {
    "sc1": Sc1Schedule,
    "sc2": Sc2Schedule,
    "add_only": AddOnlySchedule,
    "remove_only": RemoveOnlySchedule,
    "events": EventSchedule,
    "traffic": TrafficSchedule,
}


def parse_ad_hoc(value: Mapping[str, Any]) -> AdHocSchedule:
    """Build the schedule from its table: `kind` and the fields of that kind."""
    fields = dict(value)
    kind = fields.pop("kind", None)
    if kind not in SCHEDULE_KINDS:
        raise HeadraceError(f"ad-hoc schedule of kind '{kind}' is unknown", detail=f"kinds: {', '.join(SCHEDULE_KINDS)}")
    if "events" in fields:
        fields["events"] = tuple(map(_parse_event, fields["events"]))
    try:
        schedule: AdHocSchedule = SCHEDULE_KINDS[kind](**fields)
    except TypeError as error:
        raise HeadraceError(f"ad-hoc schedule of kind '{kind}' is invalid", detail=str(error)) from error
    return schedule


def ad_hoc_to_json(schedule: AdHocSchedule) -> dict[str, Any]:
    """Return the table that `parse_ad_hoc` reads."""
    kind = next(name for name, schedule_type in SCHEDULE_KINDS.items() if type(schedule) is schedule_type)
    return {"kind": kind, **asdict(schedule)}  # type: ignore[call-overload]


def _parse_event(event: Sequence[float]) -> tuple[float, int, int]:
    if len(event) != 3:
        raise HeadraceError(f"event {list(event)} is invalid", hint="write [second, queries added, queries removed]")
    return float(event[0]), int(event[1]), int(event[2])


def _iter_ticks(every: float, seconds: float) -> Iterator[float]:
    for number in numbers(1):
        if number * every >= seconds:
            return
        yield number * every


def _require_positive(value: object, *names: str) -> None:
    for name in names:
        field_value = getattr(value, name)
        if not field_value > 0:
            raise HeadraceError(f"{name} is {field_value}, but must be positive")
        if name not in _FRACTIONAL_FIELDS and not isinstance(field_value, int):
            raise HeadraceError(f"{name} is {field_value}, but a number of queries must be an integer")
