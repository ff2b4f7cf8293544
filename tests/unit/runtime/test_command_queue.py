"""The command queue: which changes a micro-batch takes, and what happens when the queue is full."""

from __future__ import annotations

import threading

import pytest

from headrace.errors import QueueFullError, SessionError
from headrace.runtime.command_queue import ChangeSettings, CommandQueue
from headrace.runtime.commands import AddQuery, RemoveQuery


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_queue(**settings) -> tuple[CommandQueue, Clock]:
    clock = Clock()
    queue = CommandQueue(clock)
    queue.settings = ChangeSettings(**settings)
    return queue, clock


def take_numbers(queue: CommandQueue, **options) -> list[int]:
    return [command.id for command in queue.take(**options)]


def test_by_default_a_batch_takes_everything_at_once():
    queue, _ = make_queue()
    for number in range(5):
        queue.append(RemoveQuery(number))
    assert take_numbers(queue) == [0, 1, 2, 3, 4]
    assert not queue.is_due()


def test_a_batch_takes_at_most_so_many_changes_in_their_order():
    queue, _ = make_queue(per_batch=2)
    for number in range(5):
        queue.append(RemoveQuery(number))
    assert [take_numbers(queue) for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_changes_that_belong_together_are_not_divided():
    queue, _ = make_queue(per_batch=2)
    queue.append(RemoveQuery(0))
    with queue.hold_together():
        queue.append(RemoveQuery(1))
        with queue.hold_together():
            queue.append(RemoveQuery(2))
        queue.append(RemoveQuery(3))
    queue.append(RemoveQuery(4))
    assert [take_numbers(queue) for _ in range(2)] == [[0, 1, 2, 3], [4]]


def test_changes_wait_until_the_oldest_has_waited_for_the_delay():
    #   seconds   0: first   1: second   2: both are due
    queue, clock = make_queue(delay=2.0)
    queue.append(RemoveQuery(0))
    clock.now = 1.0
    queue.append(RemoveQuery(1))
    assert (queue.is_due(), take_numbers(queue)) == (False, [])
    clock.now = 2.0
    assert (queue.is_due(), take_numbers(queue)) == (True, [0, 1])


def test_a_full_changelog_does_not_wait_and_the_rest_waits_for_its_own_delay():
    queue, clock = make_queue(per_batch=2, delay=2.0)
    queue.append(RemoveQuery(0))
    clock.now = 1.0
    queue.append(RemoveQuery(1))
    queue.append(RemoveQuery(2))
    assert take_numbers(queue) == [0, 1]
    clock.now = 2.5
    assert take_numbers(queue) == []
    clock.now = 3.0
    assert take_numbers(queue) == [2]


def test_hastened_and_requeued_changes_wait_no_longer():
    queue, _ = make_queue(per_batch=1, delay=60.0)
    queue.append(RemoveQuery(0))
    queue.append(RemoveQuery(1))
    queue.hasten()
    taken = queue.take()
    queue.append(RemoveQuery(2))
    queue.requeue(taken)
    assert queue.measure() == (3, 0.0, queue.settings.max_waiting, 0)
    assert [take_numbers(queue) for _ in range(2)] == [[0, 1], [2]]


def test_everything_can_be_taken_before_it_is_due():
    queue, _ = make_queue(per_batch=1, delay=60.0)
    queue.append(RemoveQuery(0))
    queue.append(RemoveQuery(1))
    assert take_numbers(queue, everything=True) == [0, 1]


def test_a_full_queue_refuses_and_says_what_to_do():
    queue, _ = make_queue(max_waiting=2)
    with queue.reserve_place(wait=False):
        queue.append(RemoveQuery(0))
    with queue.reserve_place(wait=False), pytest.raises(QueueFullError), queue.reserve_place(wait=False):
        raise AssertionError("two commands, one of them only reserved, fill the queue")
    queue.append(RemoveQuery(1))
    with pytest.raises(QueueFullError, match="2 query changes wait already") as caught, queue.reserve_place(wait=False):
        pass
    assert caught.value.hint.startswith("let micro-batches take them: call advance() or start() the session")
    assert queue.measure()[2:] == (2, 2)
    queue.take()
    with queue.reserve_place(wait=False):
        pass


def test_removals_are_queued_beyond_the_limit():
    queue, _ = make_queue(max_waiting=1)
    queue.append(RemoveQuery(0))
    queue.append(RemoveQuery(1))
    assert queue.measure().waiting == 2


def test_a_caller_waits_for_room_until_a_batch_takes_changes():
    queue, _ = make_queue(max_waiting=1, timeout=60.0)
    queue.append(RemoveQuery(0))
    entered = threading.Event()

    def add() -> None:
        with queue.reserve_place(wait=True):
            queue.append(AddQuery(1, "q", "", None))
        entered.set()

    thread = threading.Thread(target=add)
    thread.start()
    assert not entered.wait(0.05)
    assert take_numbers(queue) == [0]
    thread.join(60)
    assert entered.is_set()
    assert take_numbers(queue) == [1]


@pytest.mark.parametrize("release", ["withdraw", "close"])
def test_a_waiting_caller_goes_on_when_an_addition_is_withdrawn_or_the_session_is_closed(release: str):
    queue, _ = make_queue(max_waiting=1, timeout=60.0)
    queue.append(AddQuery(0, "q", "", None))
    entered = threading.Event()

    def enter() -> None:
        with queue.reserve_place(wait=True):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    if release == "withdraw":
        assert queue.withdraw_addition(0)
    else:
        queue.close()
    thread.join(60)
    assert entered.is_set()


def test_a_caller_that_has_waited_is_told_to_try_again():
    queue, _ = make_queue(max_waiting=1, timeout=0.01)
    queue.append(RemoveQuery(0))
    with pytest.raises(QueueFullError, match=r"there was no room for 0.01 s") as caught, queue.reserve_place(wait=True):
        pass
    assert "try again later" in caught.value.hint


def test_figures_of_the_queue():
    queue, clock = make_queue(max_waiting=7)
    assert queue.measure() == (0, 0.0, 7, 0)
    queue.append(RemoveQuery(0))
    clock.now = 3.0
    queue.append(RemoveQuery(1))
    clock.now = 5.0
    assert queue.measure() == (2, 5.0, 7, 0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("changes_per_batch", {"per_batch": 0}),
        ("changes_per_batch", {"per_batch": 1.5}),
        ("change_delay", {"delay": -1}),
        ("change_delay", {"delay": float("nan")}),
        ("max_waiting_changes", {"max_waiting": 0}),
        ("change_timeout", {"timeout": float("inf")}),
        ("change_timeout", {"timeout": "10 s"}),
    ],
)
def test_invalid_settings_are_refused_by_the_name_of_the_option(name: str, settings):
    with pytest.raises(SessionError, match=f"invalid {name}"):
        ChangeSettings(**settings)
