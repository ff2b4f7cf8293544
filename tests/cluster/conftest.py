"""What the clusters share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.package_zip import write_zip
from support.unpacked_kernels import unpack_compiled_kernels


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TMPDIR in which processes that get headrace as a zip find compiled kernels."""
    folder = tmp_path_factory.mktemp("temporary")
    write_zip(folder / "headrace.zip")
    unpack_compiled_kernels(folder / "headrace.zip", folder)
    return folder
