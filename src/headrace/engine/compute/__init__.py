"""Columnar computation on Arrow and NumPy arrays: expressions, group keys, and the components of aggregates.

`evaluator` evaluates scalar expressions a column at a time, `keys` encodes group keys, `accumulators` lifts rows into
components and combines partial aggregates, `lower` returns the final values. This package knows no queries, plans, sources
or engines. An error in a row is reported, never raised: other queries share the batch.
"""
