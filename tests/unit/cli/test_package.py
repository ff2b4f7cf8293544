"""headrace as a zip for spark-submit: importable, with its version, and with kernels that numba can cache."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from headrace.engine.kernels import unpack_kernels
from headrace.errors import HeadraceError
from headrace.package_zip import write_zip

PREFIX = "headrace/engine/kernels/"
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]  # without the editable package of the tests
import headrace
from importlib import metadata
from headrace.engine.kernels import group
session = headrace.Session(backend="local")
session.close()
print(headrace.__file__, metadata.version("headrace"), group.__file__)
"""


def test_the_zip_is_a_package_and_its_kernels_are_files(tmp_path):
    write_zip(tmp_path / "headrace.zip")
    words = [sys.executable, "-S", "-c", PROGRAM, str(tmp_path / "headrace.zip"), sysconfig.get_path("purelib")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for _ in range(2):
        completed = subprocess.run(
            words, env={**environment, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr
        package, version, module = completed.stdout.split()
        assert package.startswith(str(tmp_path / "headrace.zip"))
        assert version == "0.1.0"
        assert Path(module).exists()
        assert Path(module).is_relative_to(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").glob(".kernels*")] == []
    assert len(list((tmp_path / "cache").glob("kernels-*/group.py"))) == 1  # numba makes a folder beside it


def test_the_same_content_gives_the_same_zip_and_the_same_folder(tmp_path):
    folders = set()
    for name in ("a.zip", "b.zip"):
        write_zip(tmp_path / name)
        folders.add(unpack_kernels(str(tmp_path / name), PREFIX, tmp_path / "cache"))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert len(folders) == 1
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr(f"{PREFIX}group.py", "changed")
    assert unpack_kernels(str(tmp_path / "c.zip"), PREFIX, tmp_path / "cache") not in folders


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    write_zip(tmp_path / "a.zip")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user; set NUMBA_CACHE_DIR"):
        unpack_kernels(str(tmp_path / "a.zip"), PREFIX, tmp_path / "cache")


@pytest.mark.parametrize(("name", "message"), [("headrace.tar", "does not end in .zip"), ("no/such.zip", "cannot write")])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path, name, message):
    with pytest.raises(HeadraceError, match=message):
        write_zip(tmp_path / name)
