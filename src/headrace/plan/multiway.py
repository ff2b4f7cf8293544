"""What a join over continuously sliding windows means, whatever else is live.

Every input has a window of its own, of length W. Rows t₁ … tₙ, one of each input, are a result when all conditions hold and
every tⱼ is at most Wⱼ older than the newest of them; it is given out in the batch in which the last of them arrives.

    r, 5 s   ──────●────────────────────▶      ● and ○ are a result: ● is less than 5 s older than ○
    s, 2 s   ───◍──────○────────────────▶      ● and ◍ are one too, but they are none with a row of s 3 s before ●

So a window is nothing but one more condition between each two inputs, over their event times. Conditions and outputs see
column `c` of input i as column `i.c`, as those of windowed joins do (`headrace.plan.join`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.expression import TRUE, Call, Column, Expression, conjunction, conjuncts, walk
from headrace.model.schema import Schema
from headrace.plan.join import owner

MAX_RELATIONS = 8


@dataclass(frozen=True, slots=True)
class RangeInput:
    """One input: the rows of a stream that pass, for `range` after their event time; `predicate` is over its own columns.

    Rows more than `lateness` behind the watermark are late.
    """

    stream: str
    range: int
    predicate: Expression = TRUE
    lateness: int = 0


@dataclass(frozen=True, slots=True)
class MultiwayQuery:
    """A join of two or more inputs by any conditions between them; then the outputs. The order of inputs means nothing."""

    inputs: tuple[RangeInput, ...]
    conditions: tuple[Expression, ...]
    output: tuple[Expression, ...]
    schema: Schema

    def __post_init__(self) -> None:
        """Check that there is something to join, and that outputs fit the schema."""
        if not 2 <= len(self.inputs) <= MAX_RELATIONS:
            raise ValueError(f"a join has 2 to {MAX_RELATIONS} inputs")
        if tuple(e.type for e in self.output) != tuple(f.type for f in self.schema):
            raise ValueError("the outputs of a join do not fit its schema")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams read, each once, in order."""
        return tuple(dict.fromkeys(each.stream for each in self.inputs))

    @property
    def lateness(self) -> int:
        """How far behind the watermark a row of any input may be."""
        return max(each.lateness for each in self.inputs)


def inputs_of(condition: Expression) -> frozenset[int]:
    """Return the inputs that an expression over joined columns looks at."""
    return frozenset(owner(part.name)[0] for part in walk(condition) if isinstance(part, Column))


def canonical(plan: MultiwayQuery) -> MultiwayQuery:
    """Return the query with inputs and conditions in an order of their own: how they were written makes no difference."""
    plan = replace(plan, inputs=tuple(replace(one, predicate=_sorted(one.predicate)) for one in plan.inputs))
    order = _order(plan)
    labels = [str(order.index(index)) for index in range(len(order))]
    conditions = tuple(sorted(dict.fromkeys(_relabelled(one, labels) for one in plan.conditions), key=str))
    output = tuple(_relabelled(one, labels) for one in plan.output)
    return replace(plan, inputs=tuple(plan.inputs[i] for i in order), conditions=conditions, output=output)


def _sorted(predicate: Expression) -> Expression:
    return conjunction(sorted(dict.fromkeys(conjuncts(predicate)), key=str))


_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _relabelled(expression: Expression, labels: Sequence[str]) -> Expression:
    """Return an expression with other numbers of inputs, and comparisons turned so that the lesser text is on the left."""
    if isinstance(expression, Column):
        index, name = owner(expression.name)
        return Column(f"{labels[index]}.{name}", expression.type)
    if not isinstance(expression, Call):
        return expression
    args = tuple(_relabelled(arg, labels) for arg in expression.args)
    if expression.function in _MIRRORED and str(args[1]) < str(args[0]):
        return Call(_MIRRORED[expression.function], (args[1], args[0]), expression.type)
    return Call(expression.function, args, expression.type)


def _order(plan: MultiwayQuery) -> list[int]:
    """Return the inputs in order: by what they are, then by what is asked of them.

    Ranks are refined until each input has one of its own. Where several stay alike, one of them goes first; it hardly ever
    matters which, and where it does, it is the one that makes the least text.
    """
    ranks = _ranked([(one.stream, one.range, str(one.predicate), one.lateness) for one in plan.inputs])
    while len(set(ranks)) < len(ranks):
        ranks = _refined(plan, ranks)
        tied = min((rank for rank in ranks if ranks.count(rank) > 1), default=None)
        if tied is not None:
            first = (index for index, rank in enumerate(ranks) if rank == tied)
            options = [_refined(plan, [2 * rank - (index == one) for index, rank in enumerate(ranks)]) for one in first]
            ranks = min(options, key=lambda found: _spelled(plan, list(map(str, found))))
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def _refined(plan: MultiwayQuery, ranks: list[int]) -> list[int]:
    """Tell inputs of one rank apart by conditions and outputs, and by the ranks of other inputs in these; as far as that goes."""
    while True:
        numbers = range(len(ranks))
        seen = [_spelled(plan, [f"{rank}{'*' * (index == one)}" for index, rank in enumerate(ranks)]) for one in numbers]
        finer = _ranked(list(zip(ranks, seen, strict=True)))
        if len(set(finer)) == len(set(ranks)):
            return finer
        ranks = finer


def _ranked(keys: Sequence[Any]) -> list[int]:
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    return [places[key] for key in keys]


def _spelled(plan: MultiwayQuery, labels: Sequence[str]) -> tuple[str, ...]:
    conditions = sorted({str(_relabelled(one, labels)) for one in plan.conditions})
    return (*conditions, "", *(str(_relabelled(one, labels)) for one in plan.output))
