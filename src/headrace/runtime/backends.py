"""Back-ends by name; each is loaded only when it is asked for, so that nobody waits for one he does not use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import SessionError
from headrace.runtime.backend import Backend

_MODULES = {
    "spark": "headrace.backends.spark.backend",
    "local": "headrace.backends.local",
    "reference": "headrace.backends.oracle",
}


def load_backend(name: str, checkpoint: Path, *, master: str, spark: Any, fault: Callable[[str], None]) -> Backend:
    """Return a back-end, started."""
    if name not in _MODULES:
        raise SessionError(f"unknown back-end '{name}'", detail=f"back-ends: {', '.join(_MODULES)}")
    create: Callable[..., Backend] = importlib.import_module(_MODULES[name]).create
    return create(checkpoint=checkpoint, master=master, spark=spark, fault=fault)
