"""What is made once for a machine and kept: environments of other engines, compiled connectors."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder for such things; it exists."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "headrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
