"""Whether joins keep the pairs of overlapping windows, and the memory that these may take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import SessionError
from headrace.model.sliding_join_options import parse_choice


class JoinSlices(StrEnum):
    """What becomes of the pairs of slices in TUMBLE and HOP joins."""

    AUTO = "auto"  # kept for the next windows where that costs less than to find them again
    KEPT = "kept"  # kept wherever they fit into memory
    FOUND = "found"  # found in each window


@dataclass(frozen=True, slots=True)
class JoinSliceOptions:
    """How pairs are kept; those of a worker process may have `max_bytes`, with their indexes."""

    mode: JoinSlices = JoinSlices.AUTO
    max_bytes: int = 256 << 20

    @staticmethod
    def parse(mode: str = "auto", max_bytes: int = 256 << 20) -> JoinSliceOptions:
        """Return the options for the settings of a user; raises SessionError for an invalid one."""
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 0:
            raise SessionError(f"invalid setting join_slices_bytes={max_bytes!r}", hint="give the bytes that kept pairs may take")
        return JoinSliceOptions(parse_choice(JoinSlices, "join_slices", mode), max_bytes)

    def to_arguments(self) -> dict[str, str | int]:
        """Return the options as the arguments of `Session`."""
        return {"join_slices": str(self.mode), "join_slices_bytes": self.max_bytes}


DEFAULT_JOIN_SLICES = JoinSliceOptions()
