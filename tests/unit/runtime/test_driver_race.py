"""A real race of two driver processes for a checkpoint in S3; `scripts/race-drivers` runs many of them, with MinIO."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.driver_race import find_faults, run_race
from support.s3_server import run_s3_server


@pytest.mark.usefixtures("preloaded")
def test_a_stopped_driver_that_continues_after_a_takeover_commits_nothing_and_says_why(tmp_path: Path):
    with run_s3_server() as options:
        outcome = run_race(options, tmp_path, random.Random(7), files=24)
    assert outcome.faults == ()
    assert "epoch 2 has taken it over, since 2" in outcome.reason


def test_a_batch_that_is_committed_twice_is_a_fault():
    sound = [(-1, "a"), (0, "a"), (0, "b"), (1, "b")]
    assert find_faults(sound) == []
    assert find_faults([*sound, (1, "a")]) == []  # a new owner, which publishes the newest manifest again
    assert find_faults([*sound, (2, "a")]) == ["1 by b, then 2 by a"]
    assert find_faults([*sound, (1, "b")]) == ["1 by b, then 1 by b"]
