"""Bystanders on Spark: they emit what they emit alone, beside queries that raise, explode, block or end worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.compare import assert_same_rows
from support.hostile_session import BYSTANDERS, CULPRITS, MUST_FAIL, HostileRun, end_worker, raise_exit, raise_type_error

pytestmark = pytest.mark.spark
FUNCTIONS = {"raise_exit": raise_exit, "raise_type_error": raise_type_error, "end_worker": end_worker}
ENDING = {"end_worker": "SELECT end_worker(k) AS x FROM s"}


def test_bystanders_do_not_notice_what_goes_wrong_for_others(spark: Any, tmp_path: Path) -> None:
    runs = {}
    for name, culprits, options in (
        ("alone", {}, {"backend": "local"}),
        ("hostile", {**CULPRITS, **ENDING}, {"spark": spark, "partitions": 2}),
    ):
        (tmp_path / name).mkdir()
        runs[name] = HostileRun(tmp_path / name, options, FUNCTIONS, culprits)
        runs[name].play()
    for name in BYSTANDERS:
        assert_same_rows(runs["hostile"].results[name], runs["alone"].results[name])
    statuses = runs["hostile"].statuses
    expected = MUST_FAIL | {"blocking", "raising", "end_worker"}
    assert {name for name, status in statuses.items() if status == "failed"} == expected
