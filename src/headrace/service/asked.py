"""What a request may say."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

_KEYS = 50


class Asked(BaseModel):
    """The body of a request: keys that are not known are refused.

    Each of them by itself: so one with thousands is refused as a whole, before that takes the event loop's time.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_keys(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _KEYS:
            raise ValueError(f"{len(given):,} keys are given, and {_KEYS} are taken at most")
        return given
