"""Equality of results: multisets of rows, floats within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

_MAX_SHOWN = 10


def assert_same_rows(
    actual: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], rel: float = 1e-9, abs_: float = 1e-9
) -> None:
    """Assert that both hold the same rows the same number of times, in any order.

    Floats are equal within `rel` or `abs_` (sums that cancel have no relative precision); NaN equals NaN. A float and a decimal
    or integer are compared as floats; all other values must be equal.
    """
    problems = list(iter_differences(actual, expected, rel, abs_))
    assert not problems, "\n".join([f"{len(actual)} rows, expected {len(expected)}", *problems])


def iter_differences(
    actual: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], rel: float = 1e-9, abs_: float = 1e-9
) -> Iterator[str]:
    """Yield a line for each row without a counterpart, up to a maximum."""
    keyed_actual, keyed_expected = _sort_rows(actual), _sort_rows(expected)
    if keyed_actual == keyed_expected:  # usual, and much faster than the search; equal keys exclude pairs such as True and 1
        return
    missing = [row for _, row in keyed_expected]
    surplus = []
    for _, row in keyed_actual:
        match = next((index for index, other in enumerate(missing) if _is_same_row(row, other, rel, abs_)), None)
        if match is None:
            surplus.append(row)
        else:
            del missing[match]
    yield from _format_rows("unexpected", surplus)
    yield from _format_rows("missing", missing)


def _format_rows(label: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows[:_MAX_SHOWN]:
        yield f"{label:>10}: " + ", ".join(f"{name}={_format_value(value)}" for name, value in row.items())
    if len(rows) > _MAX_SHOWN:
        yield f"{label:>10}: … and {len(rows) - _MAX_SHOWN} more"


def _format_value(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, Decimal) else repr(value)


def _sort_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(((_sort_key(row), row) for row in rows), key=itemgetter(0))


def _sort_key(row: Mapping[str, Any]) -> str:
    """Return a key of the exact values, so that the search finds counterparts early."""
    return repr([(name, _to_utc(row[name])) for name in sorted(row) if not isinstance(row[name], float | Decimal)])


def _is_same_row(left: Mapping[str, Any], right: Mapping[str, Any], rel: float, abs_: float) -> bool:
    return left.keys() == right.keys() and all(is_same_value(left[name], right[name], rel, abs_) for name in left)


def is_same_value(left: Any, right: Any, rel: float = 1e-9, abs_: float = 1e-9) -> bool:
    """Return whether two values are equal for `assert_same_rows`."""
    if left is None or right is None:
        return left is right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) or isinstance(right, float):
        return _is_close(left, right, rel, abs_)
    return bool(_to_utc(left) == _to_utc(right))


def _is_close(left: Any, right: Any, rel: float, abs_: float) -> bool:
    if not isinstance(left, float | int | Decimal) or not isinstance(right, float | int | Decimal):
        return False
    left, right = float(left), float(right)
    return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=rel, abs_tol=abs_)


def _to_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value
