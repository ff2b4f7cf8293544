"""Rescaling while queries run: the state is repartitioned, the results stay the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.operators.sessions import SessionRuns
from headrace.engine.repartition import find_origin
from headrace.errors import SessionError
from headrace.model.partition_map import PartitionMap
from headrace.storage import container
from support.compare import assert_same_rows

DAY = datetime(2024, 1, 1, tzinfo=UTC)
_PAIRS = "FROM HOP(a, '20 seconds', '10 seconds') l JOIN HOP(b, '20 seconds', '10 seconds') r ON l.k = r.k"
_THREE = "FROM TUMBLE(a, '20 s') l JOIN TUMBLE(b, '20 s') r ON l.s = r.s JOIN TUMBLE(a, '20 s') t ON t.k = r.k + 1"
_INNER = "(SELECT k, SUM(x) AS t FROM TUMBLE(a, '5 seconds') GROUP BY k)"
QUERIES = {
    "sums": "SELECT window_start, k, SUM(x) AS t, MAX(s) AS m FROM HOP(a, '20 seconds', '5 seconds') GROUP BY k",
    "distinct": "SELECT window_start, COUNT(DISTINCT k) AS n, MEDIAN(x) AS m FROM TUMBLE(a, '20 seconds')",
    "named": "SELECT window_start, s, k, COUNT(DISTINCT x) AS n FROM TUMBLE(a, '20 seconds') GROUP BY s, k",
    "sessions": "SELECT window_start, window_end, k, COUNT(*) AS n FROM SESSION(a, '9 seconds') GROUP BY k",
    "pairs": f"SELECT window_end, l.x, r.x AS y {_PAIRS}",
    "three": f"SELECT l.x, r.x AS y, t.k {_THREE}",
    "over": f"SELECT window_end, MAX(t) AS t FROM TUMBLE({_INNER}, '20 seconds')",
}


def run_queries(partition_counts: list[int | None], folder: Path) -> dict[str, list[dict[str, Any]]]:
    random = Random(1)
    with hr.Session(folder, backend="local", partitions=2) as session:
        sources = {name: hr.MemorySource("k INT, s STRING, x INT, time TIMESTAMP") for name in "ab"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time", watermark="2 seconds")
        queries = {name: session.add(text, name=name) for name, text in QUERIES.items()}
        for number, partitions in enumerate(partition_counts):
            if partitions is not None:
                session.rescale(partitions)
            for source in sources.values():
                source.append(
                    [
                        {
                            "k": random.choice([None, *range(9)]),
                            "s": random.choice("abcdef"),
                            "x": random.randrange(100),
                            "time": DAY + timedelta(seconds=5 * number + random.uniform(0, 5)),
                        }
                        for _ in range(12)
                    ]
                )
            session.advance()
        session.drain()
        return {name: query.results().to_pylist() for name, query in queries.items()}


@pytest.fixture(scope="module")
def steady_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return run_queries([None] * 9, tmp_path_factory.mktemp("steady"))


@pytest.mark.parametrize("partition_counts", [[None, 3, None, 5, 1, 4, 4, 2, 7], [1] * 9, [1, 2, 3, 2, 1, 7, 5, 4, 3]])
def test_results_do_not_depend_on_the_number_of_partitions(
    tmp_path: Path, partition_counts: list[int | None], steady_results: dict[str, list[dict[str, Any]]]
) -> None:
    actual = run_queries(partition_counts, tmp_path / "changing")
    for name in QUERIES:
        assert steady_results[name]
        assert_same_rows(actual[name], steady_results[name])


def test_rescaling_repartitions_the_state_without_duplicates(tmp_path: Path) -> None:
    with hr.Session(tmp_path / "c", backend="local", partitions=3) as session:
        source = hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        session.add("SELECT k, COUNT(*) AS n FROM TUMBLE(a, '1 minute') GROUP BY k")
        source.append([{"k": k, "time": DAY} for k in range(20)])
        session.advance()
        session.rescale(2)
        source.append([{"k": 1, "time": DAY}])
        session.advance()
        stored_keys: list[int] = []
        for ref in session._coordinator.state.aggregation_refs:
            keys = container.read(session._coordinator.checkpoint.store, ref.file).partials[ref.index].keys
            assert (assign_partitions(keys, len(keys[0]), PartitionMap(2)) == ref.partition).all()
            stored_keys += keys[0].to_pylist()
        assert sorted(stored_keys) == sorted([1, *range(20)])  # each old key once, and the new row


@pytest.mark.parametrize("wrong", [0, -1, 10_001, 2.5, True, "3"])
def test_an_invalid_partition_count_is_refused(tmp_path: Path, wrong: Any) -> None:
    with hr.Session(tmp_path / "c", backend="local") as session, pytest.raises(SessionError, match="invalid partition count"):
        session.rescale(wrong)


def test_origins_split_session_runs_into_disjoint_shares() -> None:
    times = np.arange(100)
    runs = SessionRuns([pa.array(times % 13)], times, times, [[times]], {})
    shares = [find_origin(PartitionMap(2), PartitionMap(3), partition).filter_runs(runs) for partition in range(3)]
    assert sorted(np.concatenate([share.firsts for share in shares]).tolist()) == times.tolist()
    for number, share in enumerate(shares):
        assert (assign_partitions(share.keys, len(share.firsts), PartitionMap(3)) == number).all()


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_session_refuses_an_invalid_partition_count(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(SessionError, match="invalid partition count"):
        hr.Session(tmp_path / "c", backend="local", partitions=wrong)
