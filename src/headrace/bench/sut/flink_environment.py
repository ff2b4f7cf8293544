"""Apache Flink from the package registry, in a virtual environment of its own: it wants older libraries than we do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.sut.cache import cache_folder
from headrace.errors import HeadraceError

VERSION = "2.3.0"
_PYTHONS = ("3.11", "3.12", "3.10", "3.9")  # those that this version has packages for


@dataclass(frozen=True, slots=True)
class FlinkEnvironment:
    """Where Flink is: a Python that has it, and its jars."""

    python: Path
    home: Path

    def jars(self) -> list[Path]:
        """Return what a JVM needs to run jobs and to be talked to from Python."""
        return [*sorted((self.home / "lib").glob("*.jar")), *sorted((self.home / "opt").glob("flink-python-*.jar"))]

    def java_options(self) -> list[str]:
        """Return the options of the JVM that Flink's own configuration asks for."""
        lines = (self.home / "conf" / "config.yaml").read_text(encoding="utf-8").splitlines()
        found = next((line for line in lines if line.strip().startswith("all: --add-exports")), "")
        return found.strip().removeprefix("all: ").split()


def flink_environment() -> FlinkEnvironment:
    """Return Flink, installed now if it was not before (a minute or two, 850 MB). Raises HeadraceError if it cannot be."""
    folder = cache_folder() / f"flink-{VERSION}"
    if not folder.exists():
        _install(folder)
    python = folder / "bin" / "python"
    homes = list(folder.glob("lib/python*/site-packages/pyflink"))
    if not python.exists() or not homes:
        raise HeadraceError(f"'{folder}' is no Flink environment", hint="remove it; it is made anew")
    return FlinkEnvironment(python, homes[0])


def _install(folder: Path) -> None:
    """Make the environment beside its place and move it there whole; whoever is first wins."""
    python = _python()
    print(f"installing Apache Flink {VERSION} into '{folder}' (once, about 850 MB)", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        _run([python, "-m", "venv", str(scratch)])
        _run([str(scratch / "bin" / "python"), "-m", "pip", "install", "--progress-bar=off", f"apache-flink=={VERSION}"])
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise HeadraceError(
            f"Apache Flink {VERSION} cannot be installed",
            detail=done.stderr[-1500:].strip(),
            hint=f"look whether 'pip install apache-flink=={VERSION}' works in an empty environment; leave out flink otherwise",
        )


def _python() -> str:
    """Return an interpreter that Flink has packages for, this one if possible."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own in _PYTHONS:
        return os.fspath(getattr(sys, "_base_executable", sys.executable))
    found = next((path for version in _PYTHONS if (path := shutil.which(f"python{version}"))), None)
    if found is None:
        raise HeadraceError(
            f"Apache Flink {VERSION} has no package for Python {own}",
            hint=f"install one of Python {', '.join(_PYTHONS)} beside it; it is found by its name on the PATH",
        )
    return found
