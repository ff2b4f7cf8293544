"""References to secrets, in the place of the secrets themselves: `env:NAME` and `file:PATH`.

Options of sources and sinks are stored in the checkpoint, written to logs and shown to users. So they never have a secret: where
one belongs, they have a reference, which is resolved where a client is created: in the driver, and, of a source, in each worker.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import SinkError, SourceError

_HINT = "write env:NAME, the name of an environment variable, or file:PATH; checkpoints, logs and answers then have no secret"


def is_reference(value: object) -> bool:
    """Return whether an option names an environment variable or a file that has its value."""
    return isinstance(value, str) and value.startswith(("env:", "file:")) and not value.endswith(":")


def check_reference(name: str, value: object, error: type[SinkError | SourceError]) -> None:
    """Raise `error` if the option `name`, a secret, is neither empty nor a reference; the text does not show the value."""
    if value != "" and not is_reference(value):
        raise error(f"option '{name}' is a secret", hint=_HINT)


def resolve_reference(name: str, value: str, error: type[SinkError | SourceError]) -> str:
    """Return the secret that the option `name` refers to, and any other value as it is; raises `error` if it is not there."""
    if not is_reference(value):
        return value
    scheme, _, place = value.partition(":")
    try:
        return os.environ[place] if scheme == "env" else Path(place).read_text(encoding="utf-8").strip()
    except (KeyError, OSError, UnicodeDecodeError) as problem:
        what = f"environment variable '{place}'" if scheme == "env" else f"file '{place}'"
        reason = "it is not set" if isinstance(problem, KeyError) else str(problem)
        raise error(f"{what} with the option '{name}' cannot be read", detail=reason) from problem
