"""What a user asks of the plans of joins in TUMBLE and HOP windows: what may change, for which gain, and at which effort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from headrace.errors import SessionError


@dataclass(frozen=True, slots=True)
class WindowJoinOptions:
    """Settings of the optimizer of window joins.

    - `grouping`: whether queries that select different rows join apart; without it, equal joins are always shared.
    - `reordering`: whether inputs are joined in another order than the written one.
    - `block_inputs`: how many inputs are ordered at once; of more, the best beginning is fixed, and the search goes on from it.
    - `order_gain`, `group_gain`: a new order, or new groups, must cost less by this fraction.
    - `full_above`: when more than this fraction of the queries changed, all are planned anew, else only those that changed.
    - `drift`: rates, key counts and shared rows that change by this factor count as a change of the query.
    - `interval`: micro-batches between two looks at the statistics; more for many queries.
    - `planning_steps`: how many steps of joins one planning may estimate; then the rest stays as it is.
    """

    grouping: bool = True
    reordering: bool = True
    block_inputs: int = 5
    order_gain: float = 0.33
    group_gain: float = 0.2
    full_above: float = 0.5
    drift: float = 1.5
    interval: int = 4
    planning_steps: int = 100_000

    def __post_init__(self) -> None:
        """Raise SessionError for a value that means nothing."""
        for name, lowest in (("block_inputs", 2), ("interval", 1), ("planning_steps", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise SessionError(f"invalid setting {name}={value!r} of window_joins", hint=f"give an integer from {lowest}")
        for name, lowest, highest in (("order_gain", 0, 1), ("group_gain", 0, 1), ("full_above", 0, None), ("drift", 1, None)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not lowest <= value <= (value if highest is None else highest):
                range_text = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
                raise SessionError(f"invalid setting {name}={value!r} of window_joins", hint=f"give a number, {range_text}")
        for name in ("grouping", "reordering"):
            if not isinstance(getattr(self, name), bool):
                raise SessionError(f"invalid setting {name}={getattr(self, name)!r} of window_joins", hint="choose True or False")

    @staticmethod
    def parse(value: WindowJoinInput) -> WindowJoinOptions:
        """Return the options from settings by name, with defaults for the others; raises SessionError for an unknown name."""
        if isinstance(value, WindowJoinOptions):
            return value
        unknown = [name for name in value or {} if name not in WINDOW_JOIN_SETTINGS]
        if unknown:
            raise SessionError(
                f"unknown setting '{unknown[0]}' of window_joins", hint=f"known: {', '.join(WINDOW_JOIN_SETTINGS)}"
            )
        return WindowJoinOptions(**(value or {}))


WINDOW_JOIN_SETTINGS = tuple(field.name for field in fields(WindowJoinOptions))
WindowJoinInput: TypeAlias = WindowJoinOptions | Mapping[str, Any] | None
