"""The lease: one owner at a time, taken over when it is not renewed, without comparing clocks.

time     0        3        6        9       12
A     acquire  renew                 (paused)
B        reads ........................ takes over (epoch 2)
A                                            renews: lost
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.errors import CheckpointError, StorageError
from headrace.storage.lease import LEASE_KEY, Lease
from headrace.storage.locations import open_store
from headrace.storage.lock_wait import LockWait
from headrace.storage.object_store import ObjectStore


class FakeClock:
    """A clock that goes on when somebody sleeps; `on_sleep` runs what others do meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def store() -> ObjectStore:
    opened = open_store(f"memory://{uuid.uuid4().hex}")
    assert isinstance(opened, ObjectStore)
    return opened


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def acquire(store: ObjectStore, clock: FakeClock) -> Lease:
    return Lease(store, 10.0, clock, clock.sleep)


def test_a_released_lease_is_acquired_at_once(store: ObjectStore, clock: FakeClock):
    first = acquire(store, clock)
    first.check()
    first.release()
    first.release()
    second = acquire(store, clock)
    assert (first.epoch, second.epoch, clock.now) == (1, 2, 0.0)
    with pytest.raises(CheckpointError, match="released"):
        first.check()


def test_a_lease_that_is_renewed_is_in_use(store: ObjectStore, clock: FakeClock):
    owner = acquire(store, clock)
    clock.on_sleep = owner._renew
    with pytest.raises(CheckpointError, match=r"is in use by another session(.|\n)*process \d+ on host .*, epoch 1"):
        acquire(store, clock)
    owner.check()


def test_a_lease_that_is_not_renewed_is_taken_over_and_its_owner_says_why(store: ObjectStore, clock: FakeClock):
    paused = acquire(store, clock)
    owner = acquire(store, clock)
    assert (owner.epoch, clock.now) == (2, pytest.approx(10.0, abs=0.5))
    with pytest.raises(CheckpointError, match=r"no longer owns the checkpoint(.|\n)*epoch 2 has taken it over, since \d{4}-"):
        paused.check()
    assert "has taken it over" in str(paused.loss)
    assert owner.loss is None
    owner.check()
    paused.release()  # has no effect
    owner._renew()
    owner.check()


def test_a_standby_waits_while_the_lease_is_renewed_and_takes_over_when_the_owner_falls_silent(
    store: ObjectStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The owner renews until 30; meanwhile the store is silent for a while, which changes nothing."""
    owner = acquire(store, clock)
    get_version = ObjectStore.get_version

    def get_unless_silent(*args: str) -> object:
        if 12 < clock.now < 18:
            raise StorageError("silent")
        return get_version(*args)

    monkeypatch.setattr(ObjectStore, "get_version", get_unless_silent)
    clock.on_sleep = lambda: owner._renew() if clock.now < 30 else None
    standby = Lease(store, 10.0, clock, clock.sleep, LockWait(is_standby=True))
    assert (standby.epoch, clock.now) == (2, pytest.approx(40.0, abs=0.6))
    assert [record.getMessage().count("is in use by process") for record in caplog.records] == [1]


def test_a_standby_takes_a_released_lease_at_once_and_can_be_cancelled(store: ObjectStore, clock: FakeClock):
    owner, wait = acquire(store, clock), LockWait(is_standby=True)
    clock.on_sleep = wait.cancel
    with pytest.raises(CheckpointError, match="cancelled"):
        Lease(store, 10.0, clock, clock.sleep, wait)
    clock.on_sleep, before = owner.release, clock.now
    assert Lease(store, 10.0, clock, clock.sleep, LockWait(is_standby=True)).epoch == 2
    assert clock.now - before < 1


def test_of_two_that_take_over_at_once_one_succeeds(store: ObjectStore, clock: FakeClock):
    acquire(store, clock)
    winners: list[Lease] = []

    def let_another_one_win() -> None:
        if clock.now > 10 - 0.6 and not winners:
            clock.on_sleep = lambda: None
            other = FakeClock()
            winners.append(acquire(store, other))

    clock.on_sleep = let_another_one_win
    with pytest.raises(CheckpointError, match="in use"):
        acquire(store, clock)
    winners[0].check()


def test_a_recent_renewal_is_trusted_and_an_old_one_is_repeated(store: ObjectStore, clock: FakeClock, monkeypatch):
    owner, requests = acquire(store, clock), []
    replace_version = ObjectStore.replace_version
    monkeypatch.setattr(ObjectStore, "replace_version", lambda *args: requests.append(args[1]) or replace_version(*args))
    clock.now = 6.9
    owner.check()
    assert requests == []
    clock.now = 7.1
    owner.check()
    assert requests == [LEASE_KEY]


def test_a_renewal_whose_answer_was_lost_is_recognised(store: ObjectStore, clock: FakeClock, monkeypatch):
    owner = acquire(store, clock)
    version = owner._version
    owner._renew()
    owner._version, owner._terms = version, replace(owner._terms, count=0)  # as if the answer was lost
    clock.now = 8
    owner.check()
    owner._renew()
    owner.check()


def test_a_silent_store_is_reported_and_not_taken_for_a_loss(store: ObjectStore, clock: FakeClock, monkeypatch):
    owner = acquire(store, clock)

    def refuse(*_: object) -> None:
        raise StorageError("silent")

    clock.now = 8
    with monkeypatch.context() as silent:
        silent.setattr(ObjectStore, "replace_version", refuse)
        with pytest.raises(StorageError, match="silent"):
            owner.check()
    owner.check()


def test_a_deleted_or_damaged_lease_is_reported(store: ObjectStore, clock: FakeClock):
    owner = acquire(store, clock)
    store.delete(LEASE_KEY)
    clock.now = 8
    with pytest.raises(CheckpointError, match="deleted"):
        owner.check()
    store.put(LEASE_KEY, [b"{"])
    with pytest.raises(CheckpointError, match=r"lease.json' is damaged"):
        acquire(store, clock)
