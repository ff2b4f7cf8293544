"""The digest of a function: the same for the same code in any process, another when anything it does changes."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from types import FunctionType

import numpy as np
import pytest

from headrace.errors import SchemaError
from headrace.runtime.udf_registry import digest_function, is_library

SOURCE = """
import math, functools
LIMIT, NAMES = 3, {"a", "b", "c", "d"}
class Scale:
    by = 2
    def __call__(self, x): return x * self.by
def helper(x, y=1): return x + y
def f(x): return helper(x) + LIMIT + len(NAMES) + math.sqrt(x) if x in (1, 2, "a") else Scale()(x)
"""


def made(source: str) -> FunctionType:
    names: dict = {"__name__": "somewhere"}
    exec(compile(source, "somewhere.py", "exec"), names)
    return names["f"]


def text(code) -> str:
    return digest_function("f", code).text


def test_it_is_the_same_wherever_the_function_stands_and_in_other_processes() -> None:
    assert text(made(SOURCE)) == text(made(SOURCE)) == text(made(f"\n\n\n{SOURCE}"))
    program = f"from headrace.runtime.udf_registry import digest_function\n{SOURCE}\nprint(digest_function('f', f).text)"
    program = program.replace("import math", "__name__ = 'somewhere'\nimport math")
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == text(made(SOURCE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT, NAMES = 3", "LIMIT, NAMES = 4"),
        ("y=1", "y=2"),
        ("x + y", "x - y"),
        ("by = 2", "by = 3"),
        ("x * self.by", "x + self.by"),
        ('(1, 2, "a")', '(1, 2, "b")'),
        ("math.sqrt", "math.exp"),
        ('{"a", "b", "c", "d"}', '{"a", "b", "c"}'),
    ],
)
def test_whatever_it_does_counts(old: str, new: str) -> None:
    assert SOURCE.replace(old, new) != SOURCE
    assert text(made(SOURCE.replace(old, new))) != text(made(SOURCE))


def test_closures_objects_and_arrays_count() -> None:
    def scaled(by):
        return lambda x: x * by

    assert text(scaled(2)) == text(scaled(2)) != text(scaled(3))
    assert text(scaled(np.arange(3))) == text(scaled(np.arange(3))) != text(scaled(np.arange(4)))
    assert text(partial(pow, 2)) == text(partial(pow, 2)) != text(partial(pow, 3))
    assert text(scaled({"a": [1, 2]})) != text(scaled({"a": [1, 3]}))
    assert text(np.sqrt) != text(np.exp)
    assert text(len) != text(abs)


def test_functions_may_call_themselves_and_each_other() -> None:
    source = "def f(x): return x if x < 1 else g(x - 1)\ndef g(x): return f(x - 1)"
    assert text(made(source)) == text(made(source)) != text(made(source.replace("x - 1)\ndef", "x - 2)\ndef")))


def test_modules_of_the_user_are_named_and_libraries_are_not() -> None:
    here = sys.modules[__name__]
    assert digest_function("f", lambda x: made(x)).modules == (here,)  # noqa: PLW0108
    assert digest_function("f", np.sum).modules == ()
    assert is_library("numpy.linalg")
    assert is_library("json")
    assert not is_library("__main__")
    assert not is_library(__name__)


def test_what_cannot_be_kept_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(SchemaError, match=r"function 'f' cannot be stored\ndetail: cannot pickle '_thread.lock' object\nhint"):
        text(lambda x: lock)
