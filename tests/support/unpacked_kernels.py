"""Compiled kernels for processes that get headrace as a zip; each would compile for a minute whenever a kernel has changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import headrace
from headrace.engine.kernels import unpack_kernels

_KERNELS = Path(headrace.__file__).parent / "engine" / "kernels"


def unpack_compiled_kernels(zip_file: Path, temporary: Path) -> Path:
    """Unpack the kernels of a zip as a process with this TMPDIR does, with what is compiled in this tree; return the folder.

    The modules get the times of the tree: older versions of numba compare them, newer ones the content.
    """
    folder = unpack_kernels(str(zip_file), "headrace/engine/kernels/", temporary / f"headrace-{os.getuid()}")
    for module in folder.glob("*.py"):
        shutil.copystat(_KERNELS / module.name, module)
    shutil.copytree(_KERNELS / "__pycache__", folder / "__pycache__")
    return folder
