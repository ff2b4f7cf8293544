"""The base class of request bodies."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

_MAX_KEYS = 50


class RequestBody(BaseModel):
    """A request body that rejects unknown keys.

    Pydantic reports each unknown key, so a body with thousands is rejected as a whole before it blocks the event loop.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_key_count(cls, body: Any) -> Any:
        if isinstance(body, dict) and len(body) > _MAX_KEYS:
            raise ValueError(f"the body has {len(body):,} keys; at most {_MAX_KEYS} are allowed")
        return body
