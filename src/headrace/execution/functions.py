"""User functions in a worker: read from files of the checkpoint, which never change once written."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.errors import EvaluationError
from headrace.kernels import pack
from headrace.model.function import Code, named, provide

_LOADED: set[str] = set()
PYTHON = ".".join(platform.python_version_tuple()[:2])
"""Code is kept as this version of Python compiled it, and no other can run it."""


def function_path(directory: str | Path, tag: str) -> Path:
    """Return where a function is kept."""
    return Path(directory) / "functions" / f"{tag}.function"


def write_function(directory: str | Path, tag: str, content: bytes) -> None:
    """Keep a function, pickled; durably, for queries cannot be run without it."""
    pack.write(function_path(directory, tag), (PYTHON, content))


def load_functions(directory: str | Path, tags: Iterable[str]) -> None:
    """Make functions ready to be called; one that cannot be loaded fails the queries that call it, and nobody else."""
    for tag in tags:
        if tag in _LOADED:
            continue
        python, content = pack.read(function_path(directory, tag))
        try:
            provide(tag, _loaded(tag, python, content))
        except Exception as error:  # noqa: BLE001  it is the user's code that is run here
            provide(tag, _failing(f"function '{named(tag)}' cannot be loaded: {type(error).__name__}: {error}"))
        else:
            _LOADED.add(tag)


def _loaded(tag: str, python: str, content: bytes) -> Code:
    if python != PYTHON:
        raise EvaluationError(f"'{named(tag)}' was registered under Python {python}, and this is {PYTHON}")
    code: Code = pickle.loads(content)
    return code


def _failing(message: str) -> Code:
    def fail(*_: Any) -> Any:
        raise EvaluationError(message)

    return fail
