"""Query-sets of rows against the predicates evaluated by the reference."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from headrace.backends.reference.evaluate import is_true
from headrace.engine.operators.query_sets import QuerySetAssigner
from headrace.engine.row_batch import RowBatch
from headrace.model.stream import Stream
from headrace.plan.logical import StatelessQuery
from headrace.sql import Catalog, bind_query
from support.queries import predicate
from support.rows import SCHEMA, RowCode, decode


def test_a_row_has_the_bits_of_the_predicates_that_hold() -> None:
    random = Random(3)
    catalog = Catalog.of([Stream("alpha", SCHEMA, "time")])
    rows, _ = decode([RowCode(random.randrange(350), random.randrange(60)) for _ in range(200)], 0)
    rows = [row for row in rows if row["time"] is not None]
    batch = RowBatch(pa.Table.from_pylist(rows, schema=SCHEMA.to_arrow()), "time")
    for _ in range(20):
        texts = [predicate(random) for _ in range(random.randint(1, 12))]
        plans = [bind_query(f"SELECT k FROM alpha WHERE {text}", catalog) for text in texts]
        predicates = [plan.branches[0].predicate for plan in plans if isinstance(plan, StatelessQuery)]
        bits = random.sample(range(130), len(predicates))
        sets = QuerySetAssigner(predicates, bits).assign_sets(batch)
        for row, query_set in zip(rows, sets, strict=True):
            expected = sum(1 << bit for condition, bit in zip(predicates, bits, strict=True) if is_true(condition, row))
            assert sum(int(word) << 64 * position for position, word in enumerate(query_set)) == expected
