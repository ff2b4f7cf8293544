"""Digests of user functions: equal for equal code in every process, different after any change of behaviour."""

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


def make_function(source: str) -> FunctionType:
    names: dict = {"__name__": "somewhere"}
    exec(compile(source, "somewhere.py", "exec"), names)
    return names["f"]


def digest_text(code) -> str:
    return digest_function("f", code).text


def test_the_digest_does_not_depend_on_the_line_or_the_process() -> None:
    assert (
        digest_text(make_function(SOURCE)) == digest_text(make_function(SOURCE)) == digest_text(make_function(f"\n\n\n{SOURCE}"))
    )
    program = f"from headrace.runtime.udf_registry import digest_function\n{SOURCE}\nprint(digest_function('f', f).text)"
    program = program.replace("import math", "__name__ = 'somewhere'\nimport math")
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == digest_text(make_function(SOURCE))


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
def test_a_change_of_the_code_or_its_globals_changes_the_digest(old: str, new: str) -> None:
    assert SOURCE.replace(old, new) != SOURCE
    assert digest_text(make_function(SOURCE.replace(old, new))) != digest_text(make_function(SOURCE))


def test_the_digest_covers_closures_objects_and_arrays() -> None:
    def scale_by(by):
        return lambda x: x * by

    assert digest_text(scale_by(2)) == digest_text(scale_by(2)) != digest_text(scale_by(3))
    assert digest_text(scale_by(np.arange(3))) == digest_text(scale_by(np.arange(3))) != digest_text(scale_by(np.arange(4)))
    assert digest_text(partial(pow, 2)) == digest_text(partial(pow, 2)) != digest_text(partial(pow, 3))
    assert digest_text(scale_by({"a": [1, 2]})) != digest_text(scale_by({"a": [1, 3]}))
    assert digest_text(np.sqrt) != digest_text(np.exp)
    assert digest_text(len) != digest_text(abs)


def test_the_digest_covers_recursive_and_mutually_recursive_functions() -> None:
    source = "def f(x): return x if x < 1 else g(x - 1)\ndef g(x): return f(x - 1)"
    assert (
        digest_text(make_function(source))
        == digest_text(make_function(source))
        != digest_text(make_function(source.replace("x - 1)\ndef", "x - 2)\ndef")))
    )


def test_modules_lists_user_modules_but_no_libraries() -> None:
    here = sys.modules[__name__]
    assert digest_function("f", lambda x: make_function(x)).modules == (here,)  # noqa: PLW0108
    assert digest_function("f", np.sum).modules == ()
    assert is_library("numpy.linalg")
    assert is_library("json")
    assert not is_library("__main__")
    assert not is_library(__name__)


def test_a_function_that_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(SchemaError, match=r"function 'f' cannot be stored\ndetail: cannot pickle '_thread.lock' object\nhint"):
        digest_text(lambda x: lock)
