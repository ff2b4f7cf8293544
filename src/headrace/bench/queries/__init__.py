"""Generate benchmark queries: the structure of a query, its SQL text for each engine, and seeded generators of queries.

`query` describes a windowed aggregation independently of any engine and `dialects` renders it as SQL. `window_joins` does both
for joins in TUMBLE and HOP windows, and measures how similar two joins are; `sliding_joins` does both for joins in SLIDING
windows. `aggregations`, `window_joins`, `sliding_joins`, `nexmark` and `profit` contain the generators; `sets` maps the
generator names of scenario files to them.
"""
