"""Digests of UDF code: equal in every process for the same function, different after any change to its behaviour.

The digest covers the compiled code with constants and defaults; every value that the function refers to by global name or
closure, including functions and classes, to any depth; and the Python version, because it decides what the code means.
Libraries contribute their names, not their content; file names and paths contribute nothing.
"""

from __future__ import annotations

import copyreg
import hashlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from headrace.errors import SchemaError

_LENGTH = 16
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_CONSTANT = (tuple, frozenset, CodeType)
_FLAGS = 0xFFFF  # the flags above are those of __future__; their effects already show in the compiled code
_OWN = "headrace"
_IGNORED = frozenset({
    "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__",
    "__weakref__",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest as text, and the user modules that define the function's code; libraries are not included."""

    text: str
    modules: tuple[ModuleType, ...]


def digest_of(name: str, *parts: Any) -> Digest:
    """Return the digest of a function, given as its code and types; raises SchemaError if it refers to unpicklable values."""
    reader = _Reader()
    try:
        reader.say(platform.python_version_tuple()[:2])
        for part in parts:
            reader.read(part)
    except (TypeError, RecursionError, AttributeError) as error:
        raise SchemaError(
            f"function '{name}' cannot be stored", detail=str(error), hint="it must not refer to files, locks or sessions"
        ) from error
    return Digest(reader.hash.hexdigest()[:_LENGTH], tuple(reader.modules.values()))


def is_library(module: str | None) -> bool:
    """Return whether a module is installed, so that workers can import it, rather than the user's own."""
    root = (module or "builtins").partition(".")[0]
    if root == "__main__":
        return False
    if root in sys.stdlib_module_names or root == _OWN:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@dataclass(slots=True)
class _Reader:
    """Adds values of any kind to one hash; a value that was added before contributes only a reference."""

    hash: Any = field(default_factory=hashlib.sha256)
    modules: dict[str, ModuleType] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)

    def say(self, *words: Any) -> None:
        self.hash.update(repr(words).encode())

    def read(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.say(type(value).__name__, value)
        elif isinstance(value, ModuleType):
            self.say("module", value.__name__)
        elif isinstance(value, _CONSTANT):  # the compiler may represent equal constants by one object or by several
            self._compound(value)
        elif id(value) in self.seen:
            self.say("again", list(self.seen).index(id(value)))
        else:
            self.seen[id(value)] = value  # the reference keeps the id from being reused
            self._compound(value)

    def _compound(self, value: Any) -> None:
        if isinstance(value, FunctionType | type) and is_library(value.__module__):
            self.say("library", value.__module__, value.__qualname__)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, CodeType):
            self._code(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, CellType):
            self._all("cell", _content(value))
        elif isinstance(value, MethodType | staticmethod | classmethod):
            self._all("method", (type(value).__name__, value.__func__, getattr(value, "__self__", None)))
        elif isinstance(value, property):
            self._all("property", (value.fget, value.fset))
        elif isinstance(value, tuple | list):
            self._all(type(value).__name__, value)
        elif isinstance(value, dict):
            self._all("dict", [part for item in value.items() for part in item])
        elif isinstance(value, set | frozenset):
            self.say("set", sorted(_digest(member) for member in value))
        else:
            self._object(value)

    def _all(self, kind: str, parts: Any) -> None:
        self.say(kind, len(parts))
        for part in parts:
            self.read(part)

    def _function(self, function: FunctionType) -> None:
        self._note(function.__module__)
        self._all("function", (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__))
        namespace = function.__globals__
        for name in sorted(set(_names(function.__code__)) & set(namespace)):
            self.say("global", name)
            self.read(namespace[name])

    def _code(self, code: CodeType) -> None:
        self.say(code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.say(code.co_flags & _FLAGS, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self._all("constants", code.co_consts)

    def _class(self, kind: type) -> None:
        self._note(kind.__module__)
        self.say("class", kind.__qualname__)
        self._all("bases", kind.__bases__)
        for name, value in vars(kind).items():
            if name not in _IGNORED and type(value).__name__ not in ("member_descriptor", "getset_descriptor"):
                self.say(name)
                self.read(value)

    def _object(self, value: Any) -> None:
        """Add any other value by its pickle reduction."""
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            self.say("named", getattr(value, "__module__", None), reduced)
            return
        self._all("object", [list(part) if isinstance(part, Iterator) else part for part in reduced])

    def _note(self, module: str | None) -> None:
        loaded = sys.modules.get(module or "")
        if loaded is not None and module != "__main__":
            self.modules[loaded.__name__] = loaded


def _digest(value: Any) -> str:
    reader = _Reader()
    reader.read(value)
    return str(reader.hash.hexdigest())


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names by which the code, or functions nested in it, may refer to globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # the cell is still empty
        return ()
