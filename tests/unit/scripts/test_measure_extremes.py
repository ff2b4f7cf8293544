"""`scripts/measure-extremes`: every extreme with small figures, and the bounds of a child process."""

from __future__ import annotations

import re
from multiprocessing import Pipe

import psutil
import pytest

import headrace as hr
from support.script_modules import load_script

extremes = load_script("measure-extremes")
SMALL = {"KEYS": 1_000, "HOT_ROWS": 20, "QUERIES": 30, "STREAMS": 4, "TEXTS": 3}


@pytest.mark.parametrize(
    ("name", "last_step"),
    [
        ("keys", "window closed, 1,000 results"),
        ("hot_key", "100,000 × 100,000 rows of one key refused: .*5,000,000,000 pairs"),
        ("queries", "micro-batch without changes"),
        ("streams", "closes the windows, 40 results"),
        ("texts", "texts of 20,000,000 bytes refused: .*16,777,216"),
    ],
)
def test_an_extreme_runs_to_its_last_step(name, last_step, tmp_path, monkeypatch):
    for figure, value in SMALL.items():
        monkeypatch.setattr(extremes, figure, value)
    with hr.Session(tmp_path, backend="local", partitions=2) as session:
        steps = list(extremes.EXTREMES[name](session))
    assert re.search(last_step, steps[-1]), steps


@pytest.fixture
def pipe():
    receiver, sender = Pipe(duplex=False)
    yield receiver, sender
    receiver.close()
    sender.close()


def test_a_child_beyond_its_memory_or_time_is_reported(pipe):
    me = psutil.Process()
    assert extremes.watch_child(me, pipe[0], [], 60, gib=0.001) == "more than 0.001 GiB of memory"
    assert extremes.watch_child(me, pipe[0], [], 0, gib=1000) == "more than 0 s"


def test_steps_of_a_child_are_collected_until_it_is_done(pipe):
    receiver, sender = pipe
    step = extremes.ExtremeStep("a step", 1.0, 2.0)
    sender.send(step)
    sender.send(None)
    steps = []
    assert extremes.watch_child(psutil.Process(), receiver, steps, 60, 1000) == ""
    assert steps == [step]


def test_the_traceback_of_a_child_and_its_sudden_end_are_failures(pipe):
    receiver, sender = pipe
    sender.send("Traceback …")
    assert extremes.watch_child(psutil.Process(), receiver, [], 60, 1000) == "Traceback …"
    sender.close()
    assert extremes.watch_child(psutil.Process(), receiver, [], 60, 1000) == "the process ended"
