"""Stored checkpoints of earlier versions are read, or refused by their format: no rename may break them."""

from __future__ import annotations

import json
import pickletools
import sys
import tarfile
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import CheckpointError
from headrace.storage import container
from headrace.storage.checkpoint import CHECKPOINT_FORMAT, read_identity
from headrace.storage.posix import PosixStore
from headrace.storage.udf_store import StoredFunction
from support.corpus import CORPUS, continue_run, format_results

ARCHIVES = sorted(CORPUS.glob("format-*.tar.gz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A checkpoint of the corpus, and its format."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "checkpoint", int(request.param.name.partition("-")[2].partition(".")[0])


def test_the_corpus_has_the_current_format():
    assert CORPUS / f"format-{CHECKPOINT_FORMAT}.tar.gz" in ARCHIVES, "run scripts/write-corpus once for the new format"


def test_a_stored_checkpoint_continues_or_is_refused_by_its_format(stored: tuple[Path, int]):
    checkpoint, version = stored
    if version != CHECKPOINT_FORMAT:
        with pytest.raises(CheckpointError, match=f"has format {version}"):
            hr.Session(checkpoint, backend="local")
        return
    expected = json.loads((CORPUS / f"format-{version}.json").read_text())
    results = format_results(continue_run(checkpoint))
    if sys.version_info[:2] != (3, 11):  # the code of a function is byte code of the version that wrote it
        del results["function"], expected["function"]
    assert results == expected


def test_no_file_names_a_class_or_module_of_the_package(stored: tuple[Path, int]):
    checkpoint, _ = stored
    for path in checkpoint.rglob("*"):
        if path.is_file() and path.parent.name != "functions":
            assert b"headrace." not in path.read_bytes(), f"{path.name} names a module"


def test_the_code_of_a_function_names_no_module_of_the_package(stored: tuple[Path, int]):
    checkpoint, version = stored
    (path,) = (checkpoint / "functions").iterdir()
    if version != CHECKPOINT_FORMAT:
        assert b"headrace" not in path.read_bytes()
        return
    store = PosixStore(checkpoint, read_identity(PosixStore(checkpoint)))
    stored_function: StoredFunction = container.read(store, f"functions/{path.name}")
    texts = [argument for _, argument, _ in pickletools.genops(stored_function.code) if isinstance(argument, str)]
    assert not [text for text in texts if text.startswith("headrace")]
