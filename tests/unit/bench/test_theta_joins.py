"""Theta joins: the variants of a query of TPC-H have the same results, however they are shared; bands are bands."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from test_every_scenario import load_small, make_stream_rows

from headrace.bench.queries.query import BenchQuery
from headrace.bench.queries.theta_joins import BandJoins, TpchQueries
from headrace.connectors import MemorySource
from headrace.errors import HeadraceError
from headrace.session import Session

RANGE = "12 seconds"


def run_queries(scenario: str, queries: list[BenchQuery], *, is_shared: bool) -> list[pa.Table]:
    """Return the results of queries over the rows of a scenario."""
    small = load_small(scenario)
    with Session(backend="local", partitions=2, sliding_sharing=is_shared) as session:
        for stream in small.used_streams():
            source = MemorySource(stream.schema)
            session.create_stream(stream.name, source, time=stream.time_column, watermark="0 seconds")
            source.append(make_stream_rows(small, stream))
        for number, query in enumerate(queries):
            session.add(query.sql["headrace"], name=str(number))
        session.drain()
        return [session.query(str(number)).results() for number in range(len(queries))]


def count_rows(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_variants_of_q2_have_the_same_results(is_shared: bool):
    variants = [TpchQueries("q2", variant, RANGE).queries(1)[0] for variant in ("equal", "theta", "mixed")]
    first, *others = map(count_rows, run_queries("theta-q2-equal", variants, is_shared=is_shared))
    assert first.total() > 100
    assert all(other == first for other in others)


def test_further_queries_have_shorter_ranges():
    results = run_queries("theta-q3", list(TpchQueries("q3", "theta", RANGE).queries(3)), is_shared=True)
    longest, shorter, shortest = map(count_rows, results)
    assert longest > shorter > shortest


def test_q2_is_written_without_the_equalities_of_its_variant():
    texts = {variant: TpchQueries("q2", variant, RANGE).queries(1)[0].sql for variant in ("equal", "theta", "mixed")}
    assert [texts[variant]["headrace"].count(" = ") for variant in texts] == [4, 0, 1]
    assert "ps.ps_partkey BETWEEN p.p_partkey AND p.p_partkey" in texts["theta"]["headrace"]
    assert "p.p_partkey = ps.ps_partkey" in texts["mixed"]["headrace"]
    assert ["spark" in text for text in texts.values()] == [True, False, False]  # Spark joins streams by equalities only
    assert all("flink" in text for text in texts.values())


def test_a_band_has_the_pairs_within_its_width():
    (wide,), (none,) = (
        run_queries("theta-bands", list(BandJoins(2, width, RANGE).queries(1)), is_shared=True) for width in (3, 0)
    )
    assert "r2.a_mid BETWEEN r1.b_mid - 3 AND r1.b_mid + 3" in BandJoins(2, 3, RANGE).queries(1)[0].sql["headrace"]
    assert wide.num_rows == pytest.approx(7 * none.num_rows, rel=0.25)


@pytest.mark.parametrize("make", [lambda: TpchQueries("q7"), lambda: TpchQueries("q2", "other"), lambda: BandJoins(1)])
def test_unknown_queries_are_refused(make):
    with pytest.raises(HeadraceError, match="write"):
        make()
