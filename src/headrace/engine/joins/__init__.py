"""The shared joins: window joins (TUMBLE and HOP) over join buffers, and sliding joins over indexed state.

Rows carry a query-set: the queries that they still matter to. A pair of rows survives while the query-sets of both intersect.

Both joins have one runtime: `segment` defines rows in transit and in state, `joined_rows` the rows of several inputs side by
side, `index` the indexes and the pairs found with them, `routing` the addresses and partitions of rows, `ingest` the part of
the map stage, `segment_compaction` the merging of stored segments, `join_output` the way from complete rows to results, and
`sampling` what the optimizers learn. They differ in strategy: `window_join` joins the windows that close, in rounds, along the
chain of each query (`joiner`), and `row_fetch` completes rows that have references (`row_references`); `sliding_join` inserts
the rows of every relation into `state_store` and probes the others step by step (`probe_plan`), as the MultiStream operator does.
"""
