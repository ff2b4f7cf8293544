"""Columnar computation: the loops over rows and cells, on Arrow and NumPy arrays.

`compiled` and its siblings hold the loops that numba compiles once; all that differs between queries is an argument, so a
new query of a known shape compiles nothing. `expression` evaluates scalar expressions a column at a time, `keys` encodes
group keys, `component` and `lower` are the two ends of every aggregate, `partial` is the partial aggregate that is shuffled
and stored, `pack` its binary form. Kernels know no queries, plans, sources or engines. An error in a row is reported, never
raised: other queries share the batch.
"""
