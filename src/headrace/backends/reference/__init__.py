"""The reference back-end, used as the test oracle: runs each query alone, row by row, in plain Python.

It defines the semantics of queries (DESIGN, "Meaning"): every optimised back-end must emit exactly what this one emits. So it
favours simplicity over speed, and imports nothing of the code under test: only the model, the logical plan and the errors.

`evaluate` evaluates expressions with the functions of `numbers`, `text` and `time`, `aggregation` computes aggregates over a list
of values, `windows` assigns rows to windows and closes them, `joins` keeps the state of joins, `query` runs one query, nested or
not, and `engine` runs many queries.
"""

from headrace.backends.reference.aggregation import compute_aggregate
from headrace.backends.reference.engine import ReferenceEngine
from headrace.backends.reference.evaluate import evaluate, is_true
from headrace.backends.reference.query import ReferenceNestedQuery, ReferenceQuery, add_event_time, unnest_rows

__all__ = [
    "ReferenceEngine",
    "ReferenceNestedQuery",
    "ReferenceQuery",
    "add_event_time",
    "compute_aggregate",
    "evaluate",
    "is_true",
    "unnest_rows",
]
