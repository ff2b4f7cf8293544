"""UDFs in a worker, loaded from checkpoint files that are immutable once written."""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.errors import EvaluationError
from headrace.kernels import pack
from headrace.model.function import UdfCode, register_udf_code, udf_name

_LOADED: set[str] = set()
PYTHON = ".".join(platform.python_version_tuple()[:2])
"""UDFs are stored as bytecode, which runs only on the Python version that compiled it."""


def function_path(directory: str | Path, tag: str) -> Path:
    """Return the path of a UDF's file."""
    return Path(directory) / "functions" / f"{tag}.function"


def write_function(directory: str | Path, tag: str, content: bytes) -> None:
    """Store a pickled UDF durably; queries that call it need the file."""
    pack.write(function_path(directory, tag), (PYTHON, content))


def load_functions(directory: str | Path, tags: Iterable[str]) -> None:
    """Register UDFs for evaluation; a UDF that fails to load fails only the queries that call it."""
    for tag in tags:
        if tag in _LOADED:
            continue
        python, content = pack.read(function_path(directory, tag))
        try:
            register_udf_code(tag, _loaded(tag, python, content))
        except Exception as error:  # noqa: BLE001  unpickling runs user code
            register_udf_code(tag, _failing(f"cannot load function '{udf_name(tag)}': {type(error).__name__}: {error}"))
        else:
            _LOADED.add(tag)


def _loaded(tag: str, python: str, content: bytes) -> UdfCode:
    if python != PYTHON:
        raise EvaluationError(f"'{udf_name(tag)}' was registered under Python {python}, but this worker runs {PYTHON}")
    code: UdfCode = pickle.loads(content)
    return code


def _failing(message: str) -> UdfCode:
    def fail(*_: Any) -> Any:
        raise EvaluationError(message)

    return fail
