"""The reference back-end, used as the test oracle: runs each query alone, row by row, in plain Python.

It defines the semantics of queries (DESIGN, "Meaning"): every optimised back-end must emit exactly what this one emits. So it
favours simplicity over speed, and imports nothing of the code under test: only the model, the logical plan and the errors.

`evaluate` evaluates expressions, `aggregation` computes aggregates over a list of values, `windows` assigns rows to windows and
closes them, `joins` and `multiway` keep the state of joins, `query` runs one query, `stack` runs a nested query, `unfold`
unnests lists, and `engine` runs many queries.
"""

from headrace.backends.reference.aggregation import aggregate
from headrace.backends.reference.engine import ReferenceEngine
from headrace.backends.reference.evaluate import evaluate, holds
from headrace.backends.reference.query import ReferenceQuery
from headrace.backends.reference.stack import ReferenceStack, with_time
from headrace.backends.reference.unfold import with_unfolded

__all__ = ["ReferenceEngine", "ReferenceQuery", "ReferenceStack", "aggregate", "evaluate", "holds", "with_time", "with_unfolded"]
