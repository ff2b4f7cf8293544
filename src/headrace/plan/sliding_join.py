"""Joins in SLIDING windows: inputs, conditions, and a canonical form of the query.

Every input has a window of its own, of length W. Rows t₁ … tₙ, one of each input, are a result if all conditions hold and
every tⱼ is at most Wⱼ older than the newest of them; the batch in which the last of them arrives emits the result.

    r, 5 s   ──────●────────────────────▶      ● and ○ are a result: ● is less than 5 s older than ○
    s, 2 s   ───◍──────○────────────────▶      ● and ◍ are a result, too; ● and a row of s 3 s before ● are not

So a window is one more condition between any two inputs, over their event times. Conditions and outputs see column `c` of
input i as column `i.c`, as those of window joins do (`headrace.plan.window_join`).

An outer join of two inputs also emits the rows of one input, or of both, that find no partner, with NULL for the columns of the
other input: when all rows that could be partners would be late. An anti join emits these rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.expression import TRUE, Call, Column, Expression, combine_conjuncts, split_conjuncts, walk_expression
from headrace.model.record import record
from headrace.model.types import Schema
from headrace.plan.window_join import split_joined_name

MAX_SLIDING_JOIN_INPUTS = 12


@record("sliding-input")
@dataclass(frozen=True, slots=True)
class SlidingInput:
    """An input of a sliding join: the rows of a stream that pass `predicate`, valid for `length` after their event time.

    `predicate` is over the columns of the stream. Rows more than `lateness` behind the watermark are late.
    """

    stream: str
    length: int
    predicate: Expression = TRUE
    lateness: int = 0


@record("sliding-join-query")
@dataclass(frozen=True, slots=True)
class SlidingJoinQuery:
    """A join of two or more inputs by arbitrary conditions, then the outputs; the order of inputs has no meaning.

    Rows of `outer_inputs` that find no partner are results, too; rows with a partner are unless `emits_matches` is False. Such a
    join has two inputs, and `predicate` (WHERE, over joined columns) selects among its results.
    """

    inputs: tuple[SlidingInput, ...]
    conditions: tuple[Expression, ...]
    output: tuple[Expression, ...]
    schema: Schema
    outer_inputs: tuple[int, ...] = ()
    emits_matches: bool = True
    predicate: Expression = TRUE

    def __post_init__(self) -> None:
        """Check the number of inputs, and that outputs match the schema."""
        if not 2 <= len(self.inputs) <= MAX_SLIDING_JOIN_INPUTS:
            raise ValueError(f"a sliding join must have 2 to {MAX_SLIDING_JOIN_INPUTS} inputs")
        if len(self.inputs) > 2 and self.outer_inputs:
            raise ValueError("an outer sliding join must have two inputs")
        if tuple(e.type for e in self.output) != tuple(f.type for f in self.schema):
            raise ValueError("the outputs of a join do not match its schema")

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams read, each once, in order."""
        return tuple(dict.fromkeys(source.stream for source in self.inputs))

    @property
    def lag(self) -> int:
        """How far the watermark may have passed a result when it is known: a row without a partner has waited for one."""
        waits = (self.inputs[index].length + self.inputs[1 - index].lateness for index in self.outer_inputs)
        return max(waits, default=0)

    @property
    def lateness(self) -> int:
        """The greatest lateness that any input allows."""
        return max(source.lateness for source in self.inputs)


def referenced_inputs(condition: Expression) -> frozenset[int]:
    """Return the inputs that an expression over joined columns reads."""
    return frozenset(split_joined_name(part.name)[0] for part in walk_expression(condition) if isinstance(part, Column))


def canonicalize_join(plan: SlidingJoinQuery) -> SlidingJoinQuery:
    """Return an equivalent query with inputs and conditions in canonical order, independent of how the query is written."""
    plan = replace(plan, inputs=tuple(replace(source, predicate=_sort_conjuncts(source.predicate)) for source in plan.inputs))
    order = _order_inputs(plan)
    labels = [str(order.index(index)) for index in range(len(order))]
    conditions = tuple(sorted(dict.fromkeys(_relabel_inputs(condition, labels) for condition in plan.conditions), key=str))
    output = tuple(_relabel_inputs(expression, labels) for expression in plan.output)
    return replace(
        plan,
        inputs=tuple(plan.inputs[i] for i in order),
        conditions=conditions,
        output=output,
        outer_inputs=tuple(sorted(map(order.index, plan.outer_inputs))),
        predicate=_sort_conjuncts(_relabel_inputs(plan.predicate, labels)),
    )


def _sort_conjuncts(predicate: Expression) -> Expression:
    return combine_conjuncts(sorted(dict.fromkeys(split_conjuncts(predicate)), key=str))


_MIRRORED_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _relabel_inputs(expression: Expression, labels: Sequence[str]) -> Expression:
    """Replace the input numbers by labels, and turn comparisons so that the lesser text is on the left."""
    if isinstance(expression, Column):
        index, name = split_joined_name(expression.name)
        return Column(f"{labels[index]}.{name}", expression.type)
    if not isinstance(expression, Call):
        return expression
    args = tuple(_relabel_inputs(arg, labels) for arg in expression.args)
    if expression.function in _MIRRORED_COMPARISONS and str(args[1]) < str(args[0]):
        return Call(_MIRRORED_COMPARISONS[expression.function], (args[1], args[0]), expression.type)
    return Call(expression.function, args, expression.type)


def _order_inputs(plan: SlidingJoinQuery) -> list[int]:
    """Return the inputs in canonical order: by stream, window and predicate, then by conditions and outputs.

    Ranks are refined until they are unique. Where inputs stay tied, each of them is tried as the first; the choice with the
    least text wins (it rarely matters).
    """
    ranks = _assign_ranks(
        [
            (source.stream, source.length, str(source.predicate), source.lateness, index in plan.outer_inputs)
            for index, source in enumerate(plan.inputs)
        ]
    )
    while len(set(ranks)) < len(ranks):
        ranks = _refine_ranks(plan, ranks)
        tied = min((rank for rank in ranks if ranks.count(rank) > 1), default=None)
        if tied is not None:
            candidates = (index for index, rank in enumerate(ranks) if rank == tied)
            options = [
                _refine_ranks(plan, [2 * rank - (index == first) for index, rank in enumerate(ranks)]) for first in candidates
            ]
            ranks = min(options, key=lambda option: _render_labelled(plan, list(map(str, option))))
    return sorted(range(len(ranks)), key=ranks.__getitem__)


def _refine_ranks(plan: SlidingJoinQuery, ranks: list[int]) -> list[int]:
    """Refine ranks by the conditions and outputs in which inputs appear, and by the ranks of the other inputs there."""
    while True:
        numbers = range(len(ranks))
        texts = [
            _render_labelled(plan, [f"{rank}{'*' * (index == marked)}" for index, rank in enumerate(ranks)]) for marked in numbers
        ]
        finer = _assign_ranks(list(zip(ranks, texts, strict=True)))
        if len(set(finer)) == len(set(ranks)):
            return finer
        ranks = finer


def _assign_ranks(keys: Sequence[Any]) -> list[int]:
    rank_of_key = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [rank_of_key[key] for key in keys]


def _render_labelled(plan: SlidingJoinQuery, labels: Sequence[str]) -> tuple[str, ...]:
    conditions = sorted({str(_relabel_inputs(condition, labels)) for condition in plan.conditions})
    return (*conditions, "", *(str(_relabel_inputs(expression, labels)) for expression in (plan.predicate, *plan.output)))
