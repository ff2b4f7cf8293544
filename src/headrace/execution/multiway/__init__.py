"""The MultiStream operator of sliding joins: rows of every relation are stored, and probe the state of the others step by step.

`segment` defines the rows in transit and the stored segments, `state_store` the state of a partition, `ingest` the part of the
map stage and the routing of rows, and `sliding_join` the probes and the work of one partition at one level of a micro-batch.
"""
