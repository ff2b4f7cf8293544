"""Rounds of live readers: one for all batches since the last round, and none without a batch."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from headrace.service.notifier import BatchNotifier

LAST_BATCH = 3


@pytest.mark.parametrize(
    ("known_batches", "expected"),
    [([LAST_BATCH], 0), ([LAST_BATCH - 1], 1), ([LAST_BATCH - 2, LAST_BATCH - 1, LAST_BATCH], 1)],
)
def test_readers_are_served_once_for_all_batches_that_they_have_not_seen(known_batches: list[int], expected: int):
    session: Any = MagicMock(last_batch=LAST_BATCH, is_closed=False)
    session.done.return_value, session.wait.return_value = [], False
    notifier = BatchNotifier(session, on_batch=lambda: None)
    rounds: list[int] = []

    async def schedule_rounds() -> None:
        notifier.start()
        notifier.on_round = lambda: rounds.append(session.last_batch)
        for batch in known_batches:
            notifier.schedule_round(after=batch)
        await asyncio.sleep(0.05)
        notifier.on_round = lambda: None  # `stop` starts the last round
        notifier.stop()

    asyncio.run(schedule_rounds())
    notifier.join()
    assert rounds == [LAST_BATCH] * expected
