"""What a join over continuously sliding windows means, whatever else is live.

Every input has a window of its own, of length W. Rows t₁ … tₙ, one of each input, are a result when all conditions hold and
every tⱼ is at most Wⱼ older than the newest of them; it is given out in the batch in which the last of them arrives.

    r, 5 s   ──────●────────────────────▶      ● and ○ are a result: ● is less than 5 s older than ○
    s, 2 s   ───◍──────○────────────────▶      ● and ◍ are one too, but they are none with a row of s 3 s before ●

So a window is nothing but one more condition between each two inputs, over their event times. Conditions and outputs see
column `c` of input i as column `i.c`, as those of windowed joins do (`headrace.plan.join`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.model.expression import TRUE, Call, Column, Expression, walk
from headrace.model.schema import Schema
from headrace.plan.join import joined_column, owner

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
    order = sorted(range(len(plan.inputs)), key=lambda i: _rank(plan, i))
    number = {old: new for new, old in enumerate(order)}

    def moved(expression: Expression) -> Expression:
        if isinstance(expression, Column):
            index, name = owner(expression.name)
            return joined_column(number[index], name, expression.type)
        if isinstance(expression, Call):
            args = tuple(map(moved, expression.args))
            if expression.function in _MIRRORED and str(args[1]) < str(args[0]):
                return Call(_MIRRORED[expression.function], (args[1], args[0]), expression.type)
            return Call(expression.function, args, expression.type)
        return expression

    conditions = tuple(sorted(dict.fromkeys(map(moved, plan.conditions)), key=str))
    output = tuple(map(moved, plan.output))
    return replace(plan, inputs=tuple(plan.inputs[i] for i in order), conditions=conditions, output=output)


_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _rank(plan: MultiwayQuery, index: int) -> tuple[str, int, str, int]:
    """Return what inputs are ordered by; of a stream that is read twice, the shorter window is first."""
    one = plan.inputs[index]
    return one.stream, one.range, str(one.predicate), index
