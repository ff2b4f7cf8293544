"""The sinks of one query: numbers that are never reused, ranges of batches, callbacks that come back after a restart."""

from __future__ import annotations

import json

import pytest

from headrace.connectors import (
    NEVER,
    CallbackSink,
    ConsoleSink,
    MemorySink,
    MissingCallback,
    NoopSink,
    ParquetSink,
    QuerySink,
    SinkSet,
    is_sink_set,
    sink_set_from_json,
)
from headrace.errors import SinkError


def ignore(_table: object) -> None:
    """Take the rows of a callback."""


def list_numbers(sinks: SinkSet, batch: int) -> list[int]:
    return [item.number for item in sinks.select_batch(batch)]


def test_a_sink_takes_the_batches_from_its_first_to_before_its_end():
    item = QuerySink(0, NoopSink(), 3, 5)
    assert [batch for batch in range(8) if item.takes_batch(batch)] == [3, 4]
    assert [batch for batch in range(8) if QuerySink(0, NoopSink(), 3).takes_batch(batch)] == [3, 4, 5, 6, 7]


def test_the_driver_delivers_what_neither_workers_write_nor_the_session_keeps(tmp_path):
    sinks = (MemorySink(), NoopSink(), ParquetSink(tmp_path), ConsoleSink(), CallbackSink(ignore), MissingCallback())
    assert [QuerySink(0, sink).is_delivered for sink in sinks] == [False, False, False, True, True, True]


def test_sinks_are_added_and_ended_without_using_a_number_again():
    sinks = SinkSet.of([MemorySink(), NoopSink()]).add(ConsoleSink(1), 4).end(1, 6)
    assert [item.number for item in sinks] == [0, 1, 2]
    assert sinks.sinks == (MemorySink(), ConsoleSink(1))
    assert [list_numbers(sinks, batch) for batch in (3, 4, 5, 6)] == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 2]]
    assert sinks.end(1, 9).get(1).end_batch == 6, "it was taken away before"
    assert sinks.end(0, 9).get(2).end_batch is None
    later = sinks.drop_delivered(5).add(NoopSink(), 9)
    assert [item.number for item in later] == [0, 2, 3], "1 had all of its rows with batch 5"
    assert later.next_number == 4
    assert sinks.drop_delivered(4) is sinks, "batch 5 is the last one of sink 1"


def test_a_new_sink_waits_until_its_first_batch_is_known():
    sinks = SinkSet.of([MemorySink()]).add(NoopSink())
    assert sinks.get(1).first_batch == NEVER
    assert list_numbers(sinks, 1 << 40) == [0]


def test_a_query_needs_a_sink_and_one_that_keeps_rows_at_most(tmp_path):
    with pytest.raises(SinkError, match="needs a sink"):
        SinkSet.of([])
    with pytest.raises(SinkError, match="one memory sink only"):
        SinkSet.of([MemorySink(), NoopSink(), MemorySink()])
    with pytest.raises(SinkError, match="two sinks of a query write to"):
        SinkSet.of([ParquetSink(tmp_path)]).add(ParquetSink(tmp_path))
    assert len(SinkSet.of([ParquetSink(tmp_path), ParquetSink(tmp_path / "other"), NoopSink(), NoopSink()]).active) == 4
    assert len(SinkSet.of([MemorySink()]).end(0, 2).add(MemorySink()).active) == 1, "the first one was taken away"


def test_a_sink_that_does_not_exist_is_refused_with_those_that_do():
    sinks = SinkSet.of([MemorySink(), NoopSink()])
    with pytest.raises(SinkError, match=r"sink 2 does not exist\ndetail: sinks: 0, 1"):
        sinks.get(2)
    with pytest.raises(SinkError, match="sinks: none"):
        sinks.end(0, 1).end(1, 1).get(2)
    assert sinks.describe() == "memory, noop"
    assert sinks.end(0, 1).end(1, 1).describe() == "none"


def test_sinks_survive_json_and_callbacks_are_passed_again():
    one = SinkSet.of([ConsoleSink(3)])
    changed = SinkSet.of([CallbackSink(ignore), NoopSink()]).add(CallbackSink(print), 7).end(1, 8)
    assert one.to_json() == ConsoleSink(3).to_json(), "the form of earlier versions"
    assert not is_sink_set(one.to_json())
    assert not is_sink_set(None)
    assert is_sink_set(changed.to_json())
    assert sink_set_from_json(json.loads(json.dumps(one.to_json()))) == one
    assert sink_set_from_json(SinkSet.of([CallbackSink(ignore)]).to_json()).sinks == (MissingCallback(),)
    for sinks in (one.end(0, 3), one.add(NoopSink(), 2), one.add(NoopSink(), 2).end(1, 2).drop_delivered(1)):
        assert is_sink_set(sinks.to_json())
        assert sink_set_from_json(json.loads(json.dumps(sinks.to_json()))) == sinks
    restarted = sink_set_from_json(json.loads(json.dumps(changed.to_json())))
    assert restarted.sinks == (MissingCallback(), MissingCallback())
    assert restarted.attach_callbacks([NoopSink(), CallbackSink(ignore), CallbackSink(print)]) == changed
    assert restarted.attach_callbacks([CallbackSink(ignore)]).sinks == (CallbackSink(ignore), MissingCallback())


def test_a_committed_batch_installs_sinks_and_keeps_those_that_still_wait():
    present = SinkSet.of([CallbackSink(ignore)]).add(NoopSink()).add(ConsoleSink(2))
    installed = SinkSet((QuerySink(0, MissingCallback()), QuerySink(1, NoopSink(), 5)), 2)
    found = present.install(installed)
    assert [(item.number, item.sink, item.first_batch) for item in found] == [
        (0, CallbackSink(ignore), 0), (1, NoopSink(), 5), (2, ConsoleSink(2), NEVER),
    ]  # fmt: skip
    assert found.next_number == 3
    assert SinkSet.of([NoopSink()]).install(installed).next_number == 2


def test_sinks_match_whatever_the_functions_of_callbacks_are():
    sinks = SinkSet.of([CallbackSink(ignore), NoopSink()])
    assert sinks.matches([CallbackSink(print), NoopSink()])
    assert sinks.matches([MissingCallback(), NoopSink()])
    assert not sinks.matches([CallbackSink(print)])
    assert not sinks.matches([CallbackSink(print), MemorySink()])
    assert not sinks.matches([MemorySink(), NoopSink()])
    assert not sinks.matches([NoopSink(), CallbackSink(print)])
    assert sinks.end(1, 3).matches([MissingCallback()])
