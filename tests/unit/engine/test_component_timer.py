"""Time by component: nested components count once, and what no component covers is other."""

from __future__ import annotations

import pytest

from headrace.engine.component_timer import ComponentTimer, measured


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_component_does_not_include_those_that_it_calls():
    #  aggregation  0─────1─selection─4──────6      selection again 6 ─ 7
    clock, seconds = Clock(), dict[str, float]()
    timer = ComponentTimer(seconds, clock)
    with timer.measure("aggregation"):
        clock.now = 1.0
        with timer.measure("selection"):
            clock.now = 4.0
        clock.now = 6.0
    with timer.measure("selection"):
        clock.now = 7.0
    assert seconds == {"aggregation": 3.0, "selection": 4.0}
    timer.close(10.0)
    assert seconds["other"] == 3.0


def test_a_component_that_fails_is_measured():
    clock, seconds = Clock(), dict[str, float]()
    timer = ComponentTimer(seconds, clock)

    def fail() -> None:
        clock.now = 2.0
        raise ValueError("broken")

    with timer.measure("join"), pytest.raises(ValueError, match="broken"), timer.measure("selection"):
        fail()
    assert seconds == {"join": 0.0, "selection": 2.0}


def test_the_time_of_a_method_belongs_to_its_component():
    class Task:
        def __init__(self) -> None:
            self.seconds = dict[str, float]()
            self.clock = Clock()
            self.timer = ComponentTimer(self.seconds, self.clock)

        @measured("state")
        def work(self, seconds: float, *, factor: int = 1) -> str:
            """Take some time."""
            self.clock.now += seconds * factor
            return "done"

    task = Task()
    assert task.work(1.5, factor=2) == "done"
    assert task.seconds == {"state": 3.0}
    assert Task.work.__doc__ == "Take some time."
