"""Fault points: named steps at which a test lets a session crash.

The product calls `reach_fault_point` before and after every step that changes durable state. Without a hook that does nothing;
only tests install one, for the checkpoint directory whose session is to crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from headrace.storage.locations import parse_location

FaultHook: TypeAlias = Callable[[str], None]

_HOOKS: dict[str, FaultHook] = {}


def reach_fault_point(directory: str, step: str) -> None:
    """Call the hook of a checkpoint directory, if there is one, with the name of a step."""
    if _HOOKS and directory in _HOOKS:
        _HOOKS[directory](step)


def install_fault_hook(directory: str | Path, hook: FaultHook | None) -> None:
    """Install the hook of a checkpoint directory in this process, or remove it."""
    key = parse_location(directory)
    if hook is None:
        _HOOKS.pop(key, None)
    else:
        _HOOKS[key] = hook
