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

from headrace.kernels.expression_values import Kernel, Value, is_scalar, numbers, per_distinct, per_row, spread
from headrace.model.expression import Call

_NULL = pa.scalar(None, pa.bool_())

# --- comparisons -------------------------------------------------------------------------------------------------------

_ARROW: dict[str, Callable[[Value, Value], Value]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED = {"ne": "eq", "gt": "le", "ge": "lt"}


def compare(name: str, left: Value, right: Value) -> Value:
    """Compare values of the same type; NULL if either is NULL."""
    if not pa.types.is_floating(left.type):
        return _ARROW[name](left, right)
    if is_scalar(left):
        name, left, right = _MIRRORED[name], right, left
    if name in _NEGATED:  # the other three are right for a NaN on the left, where IEEE returns false
        return pc.invert(compare(_NEGATED[name], left, right))
    result = _ARROW[name](left, right)
    if not _has_nan(right):
        return result
    nan = pc.is_nan(right)
    return pc.or_(result, pc.and_(nan, pc.is_nan(left)) if name == "eq" else _below_nan(name, left, nan))


def _below_nan(name: str, left: Value, nan: Value) -> Value:
    """Return where the left is less than (or, for `le`, also equal to) a NaN on the right."""
    return pc.and_(nan, pc.invert(pc.is_nan(left))) if name == "lt" else pc.and_(nan, pc.is_valid(left))


def _has_nan(value: Value) -> bool:
    if is_scalar(value):
        return value.is_valid and bool(np.isnan(value.as_py()))
    return bool(np.isnan(numbers(value)).any())


def _comparison(name: str) -> Kernel:
    return lambda _, args: compare(name, args[0], args[1])


def _eq_null_safe(_: Call, args: Sequence[Value]) -> Value:
    both_null = pc.and_(pc.is_null(args[0]), pc.is_null(args[1]))
    return pc.coalesce(compare("eq", args[0], args[1]), both_null)


def _in(call: Call, args: Sequence[Value]) -> Value:
    """Look constants up by hash; a miss is NULL if NULL is among the choices. Choices that vary by row are compared each."""
    value, choices = args[0], args[1:]
    if is_scalar(value) or not all(map(is_scalar, choices)):
        return spread([reduce(pc.or_kleene, [compare("eq", value, choice) for choice in choices]), *args])[0]
    constants = [choice.as_py() for choice in choices if choice.is_valid]
    options = pa.array(constants, type=value.type)
    if pa.types.is_floating(value.type):  # the hash distinguishes ±0.0; adding zero makes both positive
        value, options = (pc.add(side, pa.scalar(0, side.type)) for side in (value, options))
    hit = pc.is_in(value, value_set=options)
    miss = pa.scalar(False if len(constants) == len(choices) else None, call.type)
    return pc.if_else(pc.is_valid(value), pc.if_else(hit, hit, miss), _NULL)


def _extreme(name: str) -> Kernel:
    """Make greatest or least: NULLs are skipped, the first of equal values wins."""

    def better(best: Value, other: Value) -> Value:
        return pc.if_else(pc.coalesce(compare(name, other, best), pc.is_null(best)), other, best)

    return lambda _, args: reduce(better, spread(args))


# --- strings -----------------------------------------------------------------------------------------------------------


def _letters(ascii_only: Callable[[pa.Array], pa.Array], full: Callable[[str], str]) -> Kernel:
    """Make upper or lower, with full case mapping as in Java: 'ß' becomes 'SS'."""

    def kernel(_: Call, args: Sequence[Value]) -> Value:
        text = args[0]
        is_ascii = pc.fill_null(pc.string_is_ascii(text), True)
        if pc.all(is_ascii, min_count=0).as_py():
            return ascii_only(text)
        not_ascii = pc.invert(is_ascii)
        mapped = per_distinct(text.filter(not_ascii), full, text.type)
        return pc.replace_with_mask(ascii_only(pc.if_else(is_ascii, text, "")), not_ascii, mapped)

    return kernel


def _substring_row(text: str, position: int, length: int | None = None) -> str:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def _substring(call: Call, args: Sequence[Value]) -> Value:
    """Cut from a 1-based position; positions before the start of the text count towards the length."""
    text, bounds = args[0], args[1:]
    if is_scalar(text) or not all(map(is_scalar, bounds)):
        return per_row(args, _substring_row, call.type)
    if not all(bound.is_valid for bound in bounds):
        return pa.nulls(len(text), call.type)
    position, length = bounds[0].as_py(), bounds[1].as_py() if bounds[1:] else None
    start = position - 1 if position > 0 else position
    stop = None if length is None else start + max(length, 0)
    if start < 0 and stop is not None and stop >= 0:
        stop = None  # reaches the end of the text
    return pc.utf8_slice_codeunits(text, start=start, stop=stop)


def _concat(_: Call, args: Sequence[Value]) -> Value:
    return pc.binary_join_element_wise(*args, "", null_handling="emit_null")


def _replace_row(text: str, search: str, replacement: str = "") -> str:
    return text.replace(search, replacement) if search else text


def _replace(call: Call, args: Sequence[Value]) -> Value:
    """Replace every occurrence; an empty search string changes nothing."""
    text, terms = args[0], args[1:]
    if is_scalar(text) or not all(map(is_scalar, terms)):
        return per_row(args, _replace_row, call.type)
    if not all(term.is_valid for term in terms):
        return pa.nulls(len(text), call.type)
    search, replacement = terms[0].as_py(), terms[1].as_py() if terms[1:] else ""
    return pc.replace_substring(text, pattern=search, replacement=replacement) if search else text


def _of_one(function: Callable[[Value], Value]) -> Kernel:
    return lambda _, args: function(args[0])


KERNELS: dict[str, Kernel] = {
    "not": _of_one(pc.invert),
    "is_null": _of_one(pc.is_null),
    **{name: _comparison(name) for name in _ARROW},
    "eq_null_safe": _eq_null_safe,
    "in": _in,
    "greatest": _extreme("gt"),
    "least": _extreme("lt"),
    "upper": _letters(pc.ascii_upper, str.upper),
    "lower": _letters(pc.ascii_lower, str.lower),
    "trim": _of_one(partial(pc.utf8_trim, characters=" ")),
    "ltrim": _of_one(partial(pc.utf8_ltrim, characters=" ")),
    "rtrim": _of_one(partial(pc.utf8_rtrim, characters=" ")),
    "reverse": _of_one(pc.utf8_reverse),
    "length": lambda call, args: pc.utf8_length(args[0]).cast(call.type),
    "substring": _substring,
    "concat": _concat,
    "replace": _replace,
}
