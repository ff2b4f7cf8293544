"""Joins with figures, for tests of optimizers: chains, stars, cycles and cliques, given by hand or drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from random import Random

from headrace.sharing.multiway.cost import Whole, tasks_for
from headrace.sharing.multiway.probe_orders import Setting
from headrace.sharing.multiway.relations import Attribute, Join, Predicate, equal

LINKS = {
    "chain": lambda names: list(pairwise(names)),
    "star": lambda names: [(names[0], name) for name in names[1:]],
    "cycle": lambda names: [*pairwise(names), (names[0], names[-1])],
    "clique": lambda names: list(combinations(names, 2)),
}


def tie(one: str, two: str) -> Predicate:
    """An equality of attributes that nobody else compares, named after the other side."""
    return equal(Attribute(one, two.lower()), Attribute(two, one.lower()))


def linked(sizes: Mapping[str, float], ties: Mapping[tuple[str, str], float], *, last_only: bool = True) -> Setting:
    selectivities = {tie(*pair): share for pair, share in ties.items()}
    return Setting(Join(frozenset(sizes), frozenset(selectivities)), Whole(sizes, selectivities, last_only))


def chain(size: float, *selectivities: float) -> Setting:
    """R1, R2, … of one size, each joined with the next."""
    names = [f"R{number}" for number in range(1, len(selectivities) + 2)]
    return linked(dict.fromkeys(names, size), dict(zip(pairwise(names), selectivities, strict=True)))


def parts_of(join: Join) -> list[Join]:
    """Every part of a join that predicates hold together, single inputs included."""
    names = sorted(join.relations)
    parts = [join.within(some) for size in range(1, len(names)) for some in combinations(names, size)]
    return [part for part in parts if part.is_connected()]


def with_capacity(setting: Setting, capacity: float) -> Setting:
    """The same join, with as many tasks for each store as its rows need."""
    return Setting(setting.join, setting.figures, tasks_for(parts_of(setting.join), setting.figures, capacity))


def drawn(seed: int, names: Sequence[str] = "ABCDE", kind: str = "") -> Setting:
    """Sizes of 100 to 10,000, joins a tenth to ten times as large as an input, stores of one to six tasks."""
    random = Random(seed)
    pairs = LINKS[kind or random.choice(sorted(LINKS))](list(names))
    sizes = {name: float(round(10 ** random.uniform(2, 4))) for name in names}
    ties = {pair: 10 ** random.uniform(-1, 1) / max(sizes[name] for name in pair) for pair in pairs}
    setting = linked(sizes, ties)
    return Setting(setting.join, setting.figures, {part: random.randint(1, 6) for part in parts_of(setting.join)})
