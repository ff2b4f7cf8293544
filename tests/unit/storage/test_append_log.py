"""The append log: an incomplete last line is removed for good, a damaged line is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import CheckpointError
from headrace.storage.append_log import AppendLog, extend_digest
from headrace.storage.posix import PosixStore


@pytest.fixture
def log(tmp_path: Path) -> AppendLog:
    log = AppendLog(PosixStore(tmp_path), "log")
    assert not log.exists()
    assert log.read() == []
    assert log.exists()
    for value in ({"b": 1, "a": [2]}, "text", None):
        log.append(value)
    return log


def test_values_come_back_in_order(log: AppendLog):
    assert log.read() == [{"b": 1, "a": [2]}, "text", None]


def test_an_incomplete_line_is_removed_and_appending_goes_on(log: AppendLog, tmp_path: Path):
    with (tmp_path / "log").open("ab") as file:
        file.write(b"0123456789abcdef {")
    assert log.read() == [{"b": 1, "a": [2]}, "text", None]
    log.append(4)
    assert log.read() == [{"b": 1, "a": [2]}, "text", None, 4]


def test_a_damaged_line_is_named(log: AppendLog, tmp_path: Path):
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    (tmp_path / "log").write_bytes(lines[0] + lines[1].replace(b"text", b"Text") + lines[2])
    with pytest.raises(CheckpointError, match="the check sum of line 2 does not match"):
        log.read()


def test_all_values_are_replaced(log: AppendLog):
    log.replace([1, 2])
    assert log.read() == [1, 2]


def test_a_digest_depends_on_all_values_and_their_order_but_not_on_the_order_of_keys():
    one = extend_digest("", {"a": 1, "b": 2})
    assert extend_digest("", {"b": 2, "a": 1}) == one
    assert len({one, extend_digest(one, 1), extend_digest(extend_digest("", 1), {"a": 1, "b": 2})}) == 3
