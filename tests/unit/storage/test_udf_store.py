"""UDFs of a checkpoint: one that does not load fails when it is called, not when it is loaded."""

from __future__ import annotations

import operator
import pickle
from pathlib import Path

import pytest

from headrace.errors import CheckpointError, EvaluationError
from headrace.model.function import get_udf_code
from headrace.storage import container
from headrace.storage.posix import PosixStore
from headrace.storage.udf_store import PYTHON_VERSION, StoredFunction, get_udf_key, load_udfs, write_udf

NEGATE = pickle.dumps(operator.neg)


def test_a_stored_function_is_loaded_once(tmp_path: Path):
    store = PosixStore(tmp_path)
    write_udf(store, "negate@loaded-once", NEGATE)
    load_udfs(store, ["negate@loaded-once"])
    assert get_udf_code("negate@loaded-once")(3) == -3
    store.delete(get_udf_key("negate@loaded-once"))
    load_udfs(store, ["negate@loaded-once"])


@pytest.mark.parametrize(
    ("tag", "stored", "message"),
    [
        ("old@another-python", StoredFunction("2.7", NEGATE), f"'old' was registered under Python 2.7, .* runs {PYTHON_VERSION}"),
        ("torn@damaged", StoredFunction(PYTHON_VERSION, b"\x80"), "cannot load function 'torn': "),
    ],
)
def test_a_function_that_does_not_load_fails_its_callers(tmp_path: Path, tag: str, stored: StoredFunction, message: str):
    store = PosixStore(tmp_path)
    container.write(store, get_udf_key(tag), stored)
    load_udfs(store, [tag])
    with pytest.raises(EvaluationError, match=message):
        get_udf_code(tag)(3)
    write_udf(store, tag, NEGATE)
    load_udfs(store, [tag])
    assert get_udf_code(tag)(3) == -3, "it is loaded again with the next batch"


def test_a_missing_file_is_an_error_of_the_checkpoint(tmp_path: Path):
    with pytest.raises(CheckpointError, match="missing@file"):
        load_udfs(PosixStore(tmp_path), ["missing@file"])
