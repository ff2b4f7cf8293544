"""The shared operators: selection, aggregation in slices, windows, sessions, routing, late rows, derived rows and compaction.

Each operator processes a row once for all queries that subscribe to it.
"""
