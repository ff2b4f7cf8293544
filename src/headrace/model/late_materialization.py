"""What a user asks of the rows that window joins store: once with references to them, or in full for each join attribute."""

from __future__ import annotations

from enum import StrEnum

from headrace.errors import SessionError


class LateMaterialization(StrEnum):
    """Whether rows of a stream that several attributes join are stored once, and fetched after the join."""

    AUTO = "auto"  # where that costs less
    ALWAYS = "always"
    NEVER = "never"

    @staticmethod
    def parse(text: str) -> LateMaterialization:
        """Return the setting of a user; raises SessionError for an invalid one."""
        try:
            return LateMaterialization(text)
        except ValueError:
            choices = ", ".join(LateMaterialization)
            raise SessionError(f"invalid setting late_materialization={text!r}", hint=f"choose one of: {choices}") from None
