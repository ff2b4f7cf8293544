"""Locate the cache folder of this machine: environments of other engines and compiled connectors."""

from __future__ import annotations

import os
from pathlib import Path


def get_cache_folder() -> Path:
    """Return the cache folder, created if it does not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "headrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
