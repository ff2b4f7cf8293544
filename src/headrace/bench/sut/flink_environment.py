"""Install Apache Flink from the package registry into its own virtual environment, because it needs older libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.sut.cache import get_cache_folder
from headrace.errors import HeadraceError

FLINK_VERSION = "2.3.0"
_SUPPORTED_PYTHONS = ("3.11", "3.12", "3.10", "3.9")  # versions with packages for this Flink


@dataclass(frozen=True, slots=True)
class FlinkEnvironment:
    """The location of Flink: the Python of its environment, and its home folder."""

    python: Path
    home: Path

    def list_jars(self) -> list[Path]:
        """Return the jars that a JVM needs to run jobs and to accept calls from Python."""
        return [*sorted((self.home / "lib").glob("*.jar")), *sorted((self.home / "opt").glob("flink-python-*.jar"))]

    def read_java_options(self) -> list[str]:
        """Return the JVM options from Flink's configuration file."""
        lines = (self.home / "conf" / "config.yaml").read_text(encoding="utf-8").splitlines()
        options = next((line for line in lines if line.strip().startswith("all: --add-exports")), "")
        return options.strip().removeprefix("all: ").split()


def ensure_flink_environment() -> FlinkEnvironment:
    """Return the Flink environment; install it first if needed (one or two minutes, 850 MB). Raise HeadraceError on failure."""
    folder = get_cache_folder() / f"flink-{FLINK_VERSION}"
    if not folder.exists():
        _install_flink(folder)
    python = folder / "bin" / "python"
    homes = list(folder.glob("lib/python*/site-packages/pyflink"))
    if not python.exists() or not homes:
        raise HeadraceError(f"'{folder}' is not a Flink environment", hint="remove the folder; the next run creates it again")
    return FlinkEnvironment(python, homes[0])


def _install_flink(folder: Path) -> None:
    """Create the environment in a temporary folder and rename it atomically; the first of concurrent installs wins."""
    python = _find_python()
    print(f"installing Apache Flink {FLINK_VERSION} into '{folder}' (once, about 850 MB)", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        _run_install_command([python, "-m", "venv", str(scratch)])
        _run_install_command(
            [str(scratch / "bin" / "python"), "-m", "pip", "install", "--progress-bar=off", f"apache-flink=={FLINK_VERSION}"]
        )
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_install_command(command: list[str]) -> None:
    completed = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if completed.returncode:
        raise HeadraceError(
            f"installing Apache Flink {FLINK_VERSION} failed",
            detail=completed.stderr[-1500:].strip(),
            hint=f"check that 'pip install apache-flink=={FLINK_VERSION}' works in an empty environment, or run without system flink",
        )


def _find_python() -> str:
    """Return a Python interpreter with packages for Flink; prefer the current one."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own in _SUPPORTED_PYTHONS:
        return os.fspath(getattr(sys, "_base_executable", sys.executable))
    interpreter = next((path for version in _SUPPORTED_PYTHONS if (path := shutil.which(f"python{version}"))), None)
    if interpreter is None:
        raise HeadraceError(
            f"Apache Flink {FLINK_VERSION} has no package for Python {own}",
            hint=f"install one of Python {', '.join(_SUPPORTED_PYTHONS)} as pythonX.Y on the PATH",
        )
    return interpreter
