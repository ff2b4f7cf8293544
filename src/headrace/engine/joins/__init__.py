"""The shared joins: window joins (TUMBLE and HOP) over join buffers, and sliding joins over indexed state.

Rows carry a query-set: the queries that they still matter to. A pair of rows survives while the query-sets of both intersect.

In the MultiStream operator of sliding joins, rows of every relation are stored and probe the state of the others step by
step: `segment` defines the rows in transit and the stored segments, `state_store` the state of a partition, `ingest` the part
of the map stage and the routing of rows, and `sliding_join` the probes and the work of one partition at one level of a
micro-batch.
"""
