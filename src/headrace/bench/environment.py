"""The environment of a measurement: machine, package versions and commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil


def describe_machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "processor": platform.machine(),
    }


def list_versions() -> dict[str, str]:
    """Return the versions of the measured packages."""
    names = ("headrace", "pyspark", "pyarrow", "numpy", "numba")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def current_commit() -> str:
    """Return the commit of this checkout, with '+' if files are modified; 'unknown' outside a checkout."""
    root = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607
        modified = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True).stdout  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if modified.strip() else "")
