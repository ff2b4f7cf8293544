"""A digest of what a function does: the same in every process, and another when anything it does is changed.

Its compiled code counts, with constants and defaults; what it refers to by global names or closures, functions and classes
included, to any depth; and the version of Python, which decides what the code means. Libraries count by their names, not by
their content; names and places of files do not count.
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
_FLAGS = 0xFFFF  # those above are of __future__, and change nothing that is not seen in the code
_OWN = "headrace"
_IGNORED = frozenset({
    "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__qualname__", "__static_attributes__",
    "__weakref__",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest as text, and the modules that the function is written in: libraries are not among them."""

    text: str
    modules: tuple[ModuleType, ...]


def digest_of(name: str, *parts: Any) -> Digest:
    """Return the digest of a function and whatever belongs to it; raises SchemaError where it holds what cannot be kept."""
    reader = _Reader()
    try:
        reader.say(platform.python_version_tuple()[:2])
        for part in parts:
            reader.read(part)
    except (TypeError, RecursionError, AttributeError) as error:
        raise SchemaError(
            f"function '{name}' cannot be kept", detail=str(error), hint="it must not hold files, locks or sessions"
        ) from error
    return Digest(reader.hash.hexdigest()[:_LENGTH], tuple(reader.modules.values()))


def is_library(module: str | None) -> bool:
    """Tell whether a module is installed, and so found by workers too, or the user's own."""
    root = (module or "builtins").partition(".")[0]
    if root == "__main__":
        return False
    if root in sys.stdlib_module_names or root == _OWN:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@dataclass(slots=True)
class _Reader:
    """Reads values of any kind into one hash; what was read already is only referred to."""

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
        elif isinstance(value, _CONSTANT):  # equal ones may be one object or several, as the compiler likes
            self._compound(value)
        elif id(value) in self.seen:
            self.say("again", list(self.seen).index(id(value)))
        else:
            self.seen[id(value)] = value  # held, so that no other value gets its id
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
            self.say("set", sorted(_digest(one) for one in value))
        else:
            self._object(value)

    def _all(self, kind: str, parts: Any) -> None:
        self.say(kind, len(parts))
        for part in parts:
            self.read(part)

    def _function(self, function: FunctionType) -> None:
        self._note(function.__module__)
        self._all("function", (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__))
        known = function.__globals__
        for name in sorted(set(_names(function.__code__)) & set(known)):
            self.say("global", name)
            self.read(known[name])

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
        """Read anything else by how it would be pickled."""
        reduce = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(made, str):
            self.say("named", getattr(value, "__module__", None), made)
            return
        self._all("object", [list(part) if isinstance(part, Iterator) else part for part in made])

    def _note(self, module: str | None) -> None:
        found = sys.modules.get(module or "")
        if found is not None and module != "__main__":
            self.modules[found.__name__] = found


def _digest(value: Any) -> str:
    reader = _Reader()
    reader.read(value)
    return str(reader.hash.hexdigest())


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that code, or functions inside of it, may mean globals by."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing was assigned yet
        return ()
