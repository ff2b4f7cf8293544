"""The oracle: each query alone, row by row, in plain Python.

It defines what queries mean (DESIGN, "Meaning"): whatever an optimised back-end emits must equal what this one emits.
So it is written to be read and believed, not to be fast, and it imports nothing of what it judges: only the model, the
logical plan and the errors.

`evaluate` gives the value of an expression, `aggregation` that of an aggregate over a list of values, `windows` says
which rows belong together and when they are final, `query` puts these together for one query, `stack` puts queries on top
of each other, `unfold` makes rows of lists, `engine` runs many.
"""

from headrace.backends.reference.aggregation import aggregate
from headrace.backends.reference.engine import ReferenceEngine
from headrace.backends.reference.evaluate import evaluate, holds
from headrace.backends.reference.query import ReferenceQuery
from headrace.backends.reference.stack import ReferenceStack, with_time
from headrace.backends.reference.unfold import with_unfolded

__all__ = ["ReferenceEngine", "ReferenceQuery", "ReferenceStack", "aggregate", "evaluate", "holds", "with_time", "with_unfolded"]
