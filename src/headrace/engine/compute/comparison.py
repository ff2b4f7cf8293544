"""Comparisons, membership tests and string functions over columns.

Doubles compare as in Spark: NaN equals NaN and is greater than everything else, −0.0 equals 0.0. Strings count code
points. Python runs only for letters outside ASCII (`upper`, `lower`: rows that have some, once per distinct value) and
for positions of `substring` and terms of `replace` that are not constants (row by row).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import Kernel, Value, broadcast_args, is_scalar, map_distinct, map_rows, to_filled_numbers
from headrace.engine.compute.text_limits import limit_result
from headrace.model.expression import Call

_NULL_BOOLEAN = pa.nulls(1, pa.bool_())[0]  # pa.scalar would import pandas, half a second of every start

# --- comparisons -------------------------------------------------------------------------------------------------------

_ARROW_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_MIRRORED_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED_COMPARISONS = {"ne": "eq", "gt": "le", "ge": "lt"}


def compare_values(name: str, left: Value, right: Value) -> Value:
    """Compare values of the same type; NULL if either is NULL."""
    if not pa.types.is_floating(left.type):
        return _ARROW_COMPARISONS[name](left, right)
    if is_scalar(left):
        name, left, right = _MIRRORED_COMPARISONS[name], right, left
    if name in _NEGATED_COMPARISONS:  # the other three are right for a NaN on the left, where IEEE returns false
        return pc.invert(compare_values(_NEGATED_COMPARISONS[name], left, right))
    result = _ARROW_COMPARISONS[name](left, right)
    if not _has_nan(right):
        return result
    nan = pc.is_nan(right)
    return pc.or_(result, pc.and_(nan, pc.is_nan(left)) if name == "eq" else _is_below_nan(name, left, nan))


def _is_below_nan(name: str, left: Value, nan: Value) -> Value:
    """Return where the left is less than (or, for `le`, also equal to) a NaN on the right."""
    return pc.and_(nan, pc.invert(pc.is_nan(left))) if name == "lt" else pc.and_(nan, pc.is_valid(left))


def _has_nan(value: Value) -> bool:
    if is_scalar(value):
        return value.is_valid and bool(np.isnan(value.as_py()))
    return bool(np.isnan(to_filled_numbers(value)).any())


def _make_comparison(name: str) -> Kernel:
    return lambda _, args: compare_values(name, args[0], args[1])


def _equals_null_safe(_: Call, args: Sequence[Value]) -> Value:
    both_null = pc.and_(pc.is_null(args[0]), pc.is_null(args[1]))
    return pc.coalesce(compare_values("eq", args[0], args[1]), both_null)


def _is_in_choices(call: Call, args: Sequence[Value]) -> Value:
    """Look constants up by hash; a miss is NULL if NULL is among the choices. Choices that vary by row are compared each."""
    value, choices = args[0], args[1:]
    if is_scalar(value) or not all(map(is_scalar, choices)):
        return broadcast_args([reduce(pc.or_kleene, [compare_values("eq", value, choice) for choice in choices]), *args])[0]
    constants = [choice.as_py() for choice in choices if choice.is_valid]
    options = pa.array(constants, type=value.type)
    if pa.types.is_floating(value.type):  # the hash distinguishes ±0.0; adding zero makes both positive
        value, options = (pc.add(side, pa.scalar(0, side.type)) for side in (value, options))
    hit = pc.is_in(value, value_set=options)
    miss = pa.scalar(False if len(constants) == len(choices) else None, call.type)
    return pc.if_else(pc.is_valid(value), pc.if_else(hit, hit, miss), _NULL_BOOLEAN)


def _make_extreme(name: str) -> Kernel:
    """Make greatest or least: NULLs are skipped, the first of equal values wins."""

    def better(best: Value, other: Value) -> Value:
        return pc.if_else(pc.coalesce(compare_values(name, other, best), pc.is_null(best)), other, best)

    return lambda _, args: reduce(better, broadcast_args(args))


# --- strings -----------------------------------------------------------------------------------------------------------


def _make_case_mapping(ascii_only: Callable[[pa.Array], pa.Array], full: Callable[[str], str]) -> Kernel:
    """Make upper or lower, with full case mapping as in Java: 'ß' becomes 'SS'."""

    def kernel(_: Call, args: Sequence[Value]) -> Value:
        text = args[0]
        is_ascii = pc.fill_null(pc.string_is_ascii(text), True)
        if pc.all(is_ascii, min_count=0).as_py():
            return ascii_only(text)
        not_ascii = pc.invert(is_ascii)
        mapped = map_distinct(text.filter(not_ascii), full, text.type)
        return pc.replace_with_mask(ascii_only(pc.if_else(is_ascii, text, "")), not_ascii, mapped)

    return kernel


def _substring_row(text: str, position: int, length: int | None = None) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def _take_substring(call: Call, args: Sequence[Value]) -> Value:
    """Cut from a 1-based position; positions before the start of the text count towards the length."""
    text, bounds = args[0], args[1:]
    if is_scalar(text) or not all(map(is_scalar, bounds)):
        return map_rows(args, _substring_row, call.type)
    if not all(bound.is_valid for bound in bounds):
        return pa.nulls(len(text), call.type)
    position, length = bounds[0].as_py(), bounds[1].as_py() if bounds[1:] else None
    start = position - 1 if position > 0 else position
    stop = None if length is None else start + max(length, 0)
    if start < 0 and stop is not None and stop >= 0:
        stop = None  # reaches the end of the text
    return pc.utf8_slice_codeunits(text, start=start, stop=stop)


def _concat_text(_: Call, args: Sequence[Value]) -> Value:
    return pc.binary_join_element_wise(*args, "", null_handling="emit_null")


def _replace_row(text: str, search: str, replacement: str = "") -> str:
    return text.replace(search, replacement) if search else text


def _replace_text(call: Call, args: Sequence[Value]) -> Value:
    """Replace every occurrence; an empty search string changes nothing."""
    text, terms = args[0], args[1:]
    if is_scalar(text) or not all(map(is_scalar, terms)):
        return map_rows(args, _replace_row, call.type)
    if not all(term.is_valid for term in terms):
        return pa.nulls(len(text), call.type)
    search, replacement = terms[0].as_py(), terms[1].as_py() if terms[1:] else ""
    return pc.replace_substring(text, pattern=search, replacement=replacement) if search else text


def _make_unary(function: Callable[[Value], Value]) -> Kernel:
    return lambda _, args: function(args[0])


KERNELS: dict[str, Kernel] = {
    "not": _make_unary(pc.invert),
    "is_null": _make_unary(pc.is_null),
    **{name: _make_comparison(name) for name in _ARROW_COMPARISONS},
    "eq_null_safe": _equals_null_safe,
    "in": _is_in_choices,
    "greatest": _make_extreme("gt"),
    "least": _make_extreme("lt"),
    "upper": _make_case_mapping(pc.ascii_upper, str.upper),
    "lower": _make_case_mapping(pc.ascii_lower, str.lower),
    "trim": _make_unary(partial(pc.utf8_trim, characters=" ")),
    "ltrim": _make_unary(partial(pc.utf8_ltrim, characters=" ")),
    "rtrim": _make_unary(partial(pc.utf8_rtrim, characters=" ")),
    "reverse": _make_unary(pc.utf8_reverse),
    "length": lambda call, args: pc.utf8_length(args[0]).cast(call.type),
    "substring": _take_substring,
    "concat": limit_result(_concat_text, "concat"),
    "replace": limit_result(_replace_text, "replace"),
}
