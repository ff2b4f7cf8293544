"""Equality of results: multisets of rows, floats within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_SHOWN = 10


def same_rows(
    actual: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], rel: float = 1e-9, abs_: float = 1e-9
) -> None:
    """Assert that both hold the same rows the same number of times, in any order.

    Floats are equal within `rel` or `abs_` (sums that cancel have no relative precision); NaN equals NaN. A float and
    a decimal or integer are compared as floats; all else must be equal.
    """
    problems = list(differences(actual, expected, rel, abs_))
    assert not problems, "\n".join([f"{len(actual)} rows, expected {len(expected)}", *problems])


def differences(
    actual: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], rel: float = 1e-9, abs_: float = 1e-9
) -> Iterator[str]:
    """Yield a line for each row that has no counterpart, at most a few."""
    missing = sorted(expected, key=_rough)
    surplus = []
    for row in sorted(actual, key=_rough):
        match = next((index for index, other in enumerate(missing) if _same_row(row, other, rel, abs_)), None)
        if match is None:
            surplus.append(row)
        else:
            del missing[match]
    yield from _lines("unexpected", surplus)
    yield from _lines("missing", missing)


def _lines(label: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows[:_SHOWN]:
        yield f"{label:>10}: " + ", ".join(f"{name}={_short(value)}" for name, value in row.items())
    if len(rows) > _SHOWN:
        yield f"{label:>10}: … and {len(rows) - _SHOWN} more"


def _short(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, Decimal) else repr(value)


def _rough(row: Mapping[str, Any]) -> str:
    """Sort by what is exact, so that counterparts meet early in the search."""
    return repr([(name, _instant(row[name])) for name in sorted(row) if not isinstance(row[name], float | Decimal)])


def _same_row(left: Mapping[str, Any], right: Mapping[str, Any], rel: float, abs_: float) -> bool:
    return left.keys() == right.keys() and all(same_value(left[name], right[name], rel, abs_) for name in left)


def same_value(left: Any, right: Any, rel: float = 1e-9, abs_: float = 1e-9) -> bool:
    """Tell whether two values are the same for `same_rows`."""
    if left is None or right is None:
        return left is right
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) or isinstance(right, float):
        return _close(left, right, rel, abs_)
    return bool(_instant(left) == _instant(right))


def _close(left: Any, right: Any, rel: float, abs_: float) -> bool:
    if not isinstance(left, float | int | Decimal) or not isinstance(right, float | int | Decimal):
        return False
    left, right = float(left), float(right)
    return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=rel, abs_tol=abs_)


def _instant(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value
