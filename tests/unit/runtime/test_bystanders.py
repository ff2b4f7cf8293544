"""Whatever other queries, streams, servers and sinks do: bystanders emit what they emit in a session of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.compare import assert_same_rows
from support.hostile_session import BYSTANDERS, CULPRITS, MUST_FAIL, HostileRun, raise_exit, raise_type_error

FUNCTIONS = {"raise_exit": raise_exit, "raise_type_error": raise_type_error}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bystanders_do_not_notice_what_goes_wrong_for_others(tmp_path: Path):
    runs = {}
    for name, culprits in (("alone", {}), ("hostile", CULPRITS)):
        (tmp_path / name).mkdir()
        runs[name] = HostileRun(tmp_path / name, {"backend": "local", "partitions": 2}, FUNCTIONS, culprits)
        runs[name].play()
    for name in BYSTANDERS:
        assert runs["alone"].results[name], name
        assert_same_rows(runs["hostile"].results[name], runs["alone"].results[name])
    statuses = runs["hostile"].statuses
    assert {name for name, status in statuses.items() if status == "failed"} == MUST_FAIL | {"blocking", "raising"}
    assert all(statuses[name] == "live" for name in BYSTANDERS)
