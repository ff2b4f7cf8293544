"""What a user asks of the plans of sliding joins: how they are searched for, what they should save, and what they may store."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from headrace.errors import SessionError


class PlanSearch(StrEnum):
    """How plans of sliding joins are searched for."""

    AUTO = "auto"  # the best that any of the others finds
    ILP = "ilp"  # all queries together: integer program, or greedy or common where these are better
    GREEDY = "greedy"  # all queries together, without the integer program
    COMMON = "common"  # the best plan of each query alone; equal parts are shared
    FLAT = "flat"  # nothing is materialized
    LEFT_DEEP = "left_deep"  # one intermediate result grows input by input
    CHAIN = "chain"  # joins of neighbours in a chain of conditions, the smallest first
    MERGING = "merging"  # the inputs whose join saves most probes are merged, step by step


class PlanTarget(StrEnum):
    """What a plan should have least of."""

    PROBES = "probes"  # rows sent to probe and to be stored
    LATENCY = "latency"  # steps of a row until its results are complete
    STORAGE = "storage"  # rows in stores


_EnumT = TypeVar("_EnumT", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class SlidingJoinOptions:
    """How sliding joins are planned; all their stores have at most `budget` rows, as estimated, if such a plan is found.

    Without `is_shared`, each query has stores and probes of its own.
    """

    search: PlanSearch = PlanSearch.AUTO
    target: PlanTarget = PlanTarget.PROBES
    budget: float = math.inf
    is_shared: bool = True

    @staticmethod
    def parse(
        search: str = "auto", target: str = "probes", budget: int | None = None, *, is_shared: bool = True
    ) -> SlidingJoinOptions:
        """Return the options for the settings of a user; raises SessionError for an invalid one."""
        if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 0):
            raise SessionError(f"invalid setting sliding_budget={budget!r}", hint="give the number of rows that stores may have")
        if not isinstance(is_shared, bool):
            raise SessionError(f"invalid setting sliding_sharing={is_shared!r}", hint="choose True or False")
        return SlidingJoinOptions(
            parse_choice(PlanSearch, "sliding_plan", search),
            parse_choice(PlanTarget, "sliding_target", target),
            math.inf if budget is None else float(budget),
            is_shared,
        )

    def to_arguments(self) -> dict[str, Any]:
        """Return the options as the arguments of `Session`."""
        return {
            "sliding_plan": str(self.search),
            "sliding_target": str(self.target),
            "sliding_budget": None if self.budget == math.inf else int(self.budget),
            "sliding_sharing": self.is_shared,
        }


def parse_choice(choices: type[_EnumT], setting: str, text: str) -> _EnumT:
    """Return the member with this text; raises SessionError if there is none."""
    try:
        return choices(text)
    except ValueError:
        raise SessionError(f"invalid setting {setting}={text!r}", hint=f"choose one of: {', '.join(choices)}") from None
