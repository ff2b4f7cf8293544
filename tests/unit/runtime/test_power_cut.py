"""A loss of power at any sync: what was committed is there, and the results are those of a run without it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from support.every_kind_session import BATCHES, EveryKindSession
from support.examples import scale_examples
from support.forgetful_disk import ForgetfulDisk, PowerCut


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForgetfulDisk:
    return ForgetfulDisk(tmp_path / "checkpoint", monkeypatch)


def open_run(folder: Path) -> EveryKindSession:
    (folder / "files").mkdir(exist_ok=True)
    return EveryKindSession(folder / "checkpoint", folder / "files")


def run_batches(folder: Path, disk: ForgetfulDisk, cut_at: int | None = None) -> tuple[int, dict[str, list[object]]]:
    """Run all batches; return the number of syncs in them, and the results of all queries.

    At the sync number `cut_at` the power is lost. It is never lost while rows are appended: an `append` that did not return may
    have happened or not.
    """
    run, syncs, is_cut = open_run(folder), 0, False
    for batch in range(BATCHES):
        run.add_queries(batch)
        run.append(batch)
        before = disk.syncs
        disk.cut_at = -1 if cut_at is None or is_cut else before + cut_at - syncs
        try:
            run.session.advance()
        except PowerCut:
            run.session._checkpoint.close()
            committed, is_cut = run.session.last_batch, True
            disk.cut_power()
            run = open_run(folder)
            assert run.session.last_batch >= committed
            for earlier in range(batch + 1):
                run.add_queries(earlier)
            run.session.advance()
        disk.cut_at = -1
        syncs += disk.syncs - before
    run.session.drain()
    results = run.read_results()
    run.session.close()
    assert is_cut or cut_at is None, "the power was not lost"
    return syncs, results


def test_a_loss_of_power_loses_nothing_that_was_committed(tmp_path: Path, disk: ForgetfulDisk):
    syncs, expected = run_batches(tmp_path, disk)
    assert syncs > 100
    moments = random.Random(syncs).sample(range(1, syncs + 1), min(syncs, scale_examples(30)))
    for moment in moments:
        for name in ("checkpoint", "files"):
            shutil.rmtree(tmp_path / name)
        disk.forget_all()
        assert run_batches(tmp_path, disk, moment)[1] == expected, f"power lost at sync {moment} of {syncs}"
