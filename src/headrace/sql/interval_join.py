"""Joins of streams without windows whose conditions bound the times of their rows: they are joins in SLIDING windows.

    a JOIN b ON a.k = b.k AND a.time BETWEEN b.time - INTERVAL 5 SECONDS AND b.time + INTERVAL 2 SECONDS
    SLIDING(a, '5 seconds') JOIN SLIDING(b, '2 seconds') ON a.k = b.k

A condition such as `b.time <= a.time + INTERVAL 5 SECONDS` says how much older than a row of b a row of a may be. Conditions
imply others: with c at most 3 s older than b, and b at most 5 s older than a, c is at most 8 s older than a. The range of an
input is the most that it can be older than any other. A bound that the ranges imply is dropped if an equality finds the partners,
else it serves their search; the others are evaluated on joined rows, so windows may be wider than the conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.errors import SqlError
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.plan.sliding_join import referenced_inputs
from headrace.plan.window_join import split_joined_name
from headrace.sql.scope import SlidingJoinScope

_EXAMPLE = "a.time BETWEEN b.time - INTERVAL 8 SECONDS AND b.time + INTERVAL 8 SECONDS"


class AgeLimit(NamedTuple):
    """Rows of input `older` are at most `micros` older than those of input `newer`; a negative limit is a least distance."""

    older: int
    newer: int
    micros: int


def derive_ranges(scope: SlidingJoinScope, names: Sequence[str], time_columns: Sequence[str]) -> SlidingJoinScope:
    """Return a scope of streams without windows with the ranges that its conditions imply.

    `names` are those of the inputs in the text, `time_columns` have their event times. Raises SqlError if the conditions do not
    bound the times of all pairs of rows.
    """
    times = [f"{index}.{column}" for index, column in enumerate(time_columns)]
    limits = {condition: list(_find_age_limits(condition, times)) for condition in scope.conditions}
    ages = _combine_limits(len(times), [limit for found in limits.values() for limit in found])
    _check_bounded(ages, names)
    ranges = [max(0, *(int(age) for newer, age in enumerate(row) if newer != older)) for older, row in enumerate(ages)]

    def is_implied(condition: Expression) -> bool:
        found = limits[condition]
        return len(found) == 1 and found[0].micros >= ranges[found[0].older]  # an equality of times has two limits, and is kept

    has_equality = any(_is_equality(condition) for condition in scope.conditions)
    return replace(
        scope,
        inputs=tuple(replace(each, length=length) for each, length in zip(scope.inputs, ranges, strict=True)),
        conditions=tuple(part for part in scope.conditions if not (has_equality and is_implied(part))),
    )


def _is_equality(condition: Expression) -> bool:
    """Tell whether a condition is an equality of two inputs, which finds partners without trying all rows in range."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return False
    sides = [referenced_inputs(side) for side in condition.args]
    return all(len(side) == 1 for side in sides) and sides[0] != sides[1]


def _find_age_limits(condition: Expression, times: Sequence[str]) -> Iterator[AgeLimit]:
    """Yield what a comparison of the event times of two inputs says about their distance."""
    if not isinstance(condition, Call) or condition.function not in {"le", "lt", "ge", "gt", "eq"}:
        return
    sides = [_parse_time(side, times) for side in condition.args]
    if sides[0] is None or sides[1] is None or sides[0][0] == sides[1][0]:
        return
    is_strict = condition.function in {"lt", "gt"}
    (left, left_shift), (right, right_shift) = sides[0], sides[1]
    if condition.function in {"le", "lt", "eq"}:  # left + shift <= right + shift: so much is left newer at most
        yield AgeLimit(right, left, right_shift - left_shift - is_strict)
    if condition.function in {"ge", "gt", "eq"}:
        yield AgeLimit(left, right, left_shift - right_shift - is_strict)


def _parse_time(side: Expression, times: Sequence[str]) -> tuple[int, int] | None:
    """Return the input and the shift in microseconds of an event time, as it is or with an INTERVAL added."""
    shift = 0
    while isinstance(side, Call) and side.function == "time_add":
        side, added = side.args
        if not isinstance(added, Literal) or not isinstance(added.value, int):
            return None
        shift += added.value
    if not isinstance(side, Column) or side.name not in times:
        return None
    return split_joined_name(side.name)[0], shift


def _combine_limits(count: int, limits: Iterable[AgeLimit]) -> list[list[float]]:
    """Return the least limit of the age of each input against each other one that all limits together imply."""
    ages = [[0.0 if older == newer else math.inf for newer in range(count)] for older in range(count)]
    for older, newer, micros in limits:
        ages[older][newer] = min(ages[older][newer], micros)
    for middle in range(count):
        for older in range(count):
            for newer in range(count):
                ages[older][newer] = min(ages[older][newer], ages[older][middle] + ages[middle][newer])
    return ages


def _check_bounded(ages: Sequence[Sequence[float]], names: Sequence[str]) -> None:
    if any(row[index] < 0 for index, row in enumerate(ages)):
        raise SqlError("no rows can satisfy the conditions on the times", hint=f"write the earlier bound first: {_EXAMPLE}")
    if all(math.isinf(age) for older, row in enumerate(ages) for newer, age in enumerate(row) if older != newer):
        raise SqlError(
            f"a join needs windows, and '{names[0]}' has no window",
            hint=f"write TUMBLE(stream, '8 seconds') on all sides, or bound the times in a condition: {_EXAMPLE}",
        )
    for older, row in enumerate(ages):
        for newer, age in enumerate(row):
            if math.isinf(age):
                raise SqlError(
                    f"rows of '{names[older]}' may be any time older than those of '{names[newer]}'",
                    detail="a join of streams without windows needs conditions that bound the times in both directions",
                    hint=f"write {_EXAMPLE}",
                )
