# ruff: noqa: INP001  a script
"""An application for spark-submit: revenue by gem pack over generated purchases, on whatever Spark there is.

    spark-submit --master spark://HOST:7077 --py-files headrace.zip examples/cluster.py s3://bucket/checkpoint

The checkpoint is the URL of an object store, or a folder that driver and workers share (docs/deployment.md).
"""

from __future__ import annotations

import sys

import headrace as hr

QUERY = "SELECT window_start, gem_pack, SUM(price) AS revenue FROM TUMBLE(purchases, '5 seconds') GROUP BY gem_pack"

with hr.Session(*sys.argv[1:2]) as session:
    session.create_stream("purchases", hr.RateSource(100_000, "purchases", rows=1_000_000), time="time")
    revenue = session.add(QUERY, name="revenue")
    session.start()
    while revenue.emitted == 0:
        session.wait(lambda: revenue.emitted > 0, 1)
    session.stop()
    print(revenue.to_pandas().head(10))
