"""Scripts of `scripts/`, which have no suffix, as modules."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load_script(name: str) -> ModuleType:
    """Return a new module with the content of a script; its `main` does not run."""
    loader = SourceFileLoader(name.replace("-", "_"), str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look up their module
    writes_byte_code, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would be `measure-soakc`, beside the script
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes_byte_code
    return module
