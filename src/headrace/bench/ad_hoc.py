"""When queries come and go during a run: how many at which second. Which ones they are is the scenario's business.

    live        ┌──┬──┬── until        ─────┬─────┬─────   queries       events: whatever is written
            ┌──┘                            │     │
         ───┘  sc1                         sc2: as many go as come

Seconds count from the moment the driver begins. Nothing happens at or after the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from itertools import count as numbers
from typing import Any, Protocol

from headrace.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Change:
    """At a second, so many queries are added, and so many of those live longest are removed."""

    at: float
    add: int = 0
    remove: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no change."""
        if self.at < 0 or self.add < 0 or self.remove < 0 or self.add + self.remove == 0:
            raise HeadraceError(f"a change at second {self.at} adds {self.add} and removes {self.remove} queries")


class AdHoc(Protocol):
    """A schedule; `initial` is how many queries are there when the run begins."""

    @property
    def initial(self) -> int:
        """The queries at the beginning."""

    def changes(self, seconds: float) -> tuple[Change, ...]:
        """Return what changes within a run of so many seconds, in order of time."""


@dataclass(frozen=True, slots=True)
class Sc1:
    """From `initial` queries on, `per_second` more each second until there are `queries`; from then on they stay."""

    queries: int
    per_second: float
    initial: int = 1

    def __post_init__(self) -> None:
        """Refuse what would never get there."""
        _positive(self, "queries", "per_second", "initial")
        if self.initial > self.queries:
            raise HeadraceError(f"initial is {self.initial}, but there shall be only {self.queries} queries")

    def changes(self, seconds: float) -> tuple[Change, ...]:
        """Add whole queries, once a second, or as often as there is one to add."""
        ticks = list(_ticks(max(1.0, 1 / self.per_second), seconds))
        live = [self.initial, *(min(self.queries, self.initial + round(at * self.per_second)) for at in ticks)]
        steps = zip(ticks, pairwise(live), strict=True)
        return tuple(Change(at, add=after - before) for at, (before, after) in steps if after > before)


@dataclass(frozen=True, slots=True)
class Sc2:
    """Always `queries` queries: every so many seconds all of them go and as many new ones come."""

    queries: int
    every: float

    def __post_init__(self) -> None:
        """Refuse what never changes."""
        _positive(self, "queries", "every")

    @property
    def initial(self) -> int:
        """The first ones."""
        return self.queries

    def changes(self, seconds: float) -> tuple[Change, ...]:
        """Replace all of them, again and again."""
        return tuple(Change(at, self.queries, self.queries) for at in _ticks(self.every, seconds))


@dataclass(frozen=True, slots=True)
class AddOnly:
    """From `initial` queries on, `add` more every so many seconds, until there are `queries`."""

    queries: int
    every: float
    add: int = 1
    initial: int = 1

    def __post_init__(self) -> None:
        """Refuse what never changes."""
        _positive(self, "queries", "every", "add", "initial")

    def changes(self, seconds: float) -> tuple[Change, ...]:
        """Add, as long as there are too few."""
        ticks = zip(_ticks(self.every, seconds), range(self.initial, self.queries, self.add), strict=False)
        return tuple(Change(at, add=min(self.add, self.queries - live)) for at, live in ticks)


@dataclass(frozen=True, slots=True)
class RemoveOnly:
    """From `queries` queries on, `remove` fewer every so many seconds; one stays."""

    queries: int
    every: float
    remove: int = 1

    def __post_init__(self) -> None:
        """Refuse what never changes."""
        _positive(self, "queries", "every", "remove")

    @property
    def initial(self) -> int:
        """All of them."""
        return self.queries

    def changes(self, seconds: float) -> tuple[Change, ...]:
        """Remove, as long as there is more than one."""
        ticks = zip(_ticks(self.every, seconds), range(self.queries, 1, -self.remove), strict=False)
        return tuple(Change(at, remove=min(self.remove, live - 1)) for at, live in ticks)


@dataclass(frozen=True, slots=True)
class Events:
    """Whatever is written: [second, queries added, queries removed], in order of time."""

    initial: int
    events: tuple[tuple[float, int, int], ...]

    def __post_init__(self) -> None:
        """Refuse changes out of order, and the removal of queries that are not there."""
        _positive(self, "initial")
        found = [Change(*event) for event in self.events]
        if any(one.at > two.at for one, two in pairwise(found)):
            raise HeadraceError("events are not in order of time")
        lowest = min(accumulate((each.add - each.remove for each in found), initial=self.initial))
        if lowest < 0:
            raise HeadraceError(f"events remove {-lowest} more queries than there are", hint="begin with more of them")

    def changes(self, seconds: float) -> tuple[Change, ...]:
        """Return those within the run."""
        return tuple(Change(*event) for event in self.events if event[0] < seconds)


_FRACTIONS = {"per_second", "every"}
KINDS: Mapping[str, type[Any]] = {
    "sc1": Sc1,
    "sc2": Sc2,
    "add_only": AddOnly,
    "remove_only": RemoveOnly,
    "events": Events,
}


def ad_hoc_of(value: Mapping[str, Any]) -> AdHoc:
    """Return the schedule a table describes: `kind`, and what that kind needs."""
    given = dict(value)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        raise HeadraceError(f"ad-hoc schedule of kind '{kind}' is not known", detail=f"kinds: {', '.join(KINDS)}")
    if "events" in given:
        given["events"] = tuple(map(_event, given["events"]))
    try:
        made: AdHoc = KINDS[kind](**given)
    except TypeError as error:
        raise HeadraceError(f"ad-hoc schedule of kind '{kind}' is not understood", detail=str(error)) from error
    return made


def ad_hoc_json(made: AdHoc) -> dict[str, Any]:
    """Return what `ad_hoc_of` takes."""
    kind = next(name for name, kind in KINDS.items() if type(made) is kind)
    return {"kind": kind, **asdict(made)}  # type: ignore[call-overload]


def _event(event: Sequence[float]) -> tuple[float, int, int]:
    if len(event) != 3:
        raise HeadraceError(f"event {list(event)} is not understood", hint="write [second, queries added, queries removed]")
    return float(event[0]), int(event[1]), int(event[2])


def _ticks(every: float, seconds: float) -> Iterator[float]:
    for number in numbers(1):
        if number * every >= seconds:
            return
        yield number * every


def _positive(value: object, *names: str) -> None:
    for name in names:
        given = getattr(value, name)
        if not given > 0:
            raise HeadraceError(f"{name} is {given}, but must be positive")
        if name not in _FRACTIONS and not isinstance(given, int):
            raise HeadraceError(f"{name} is {given}, but queries are whole")
