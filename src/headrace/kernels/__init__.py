"""Columns in, columns out: the loops over rows and cells, over Arrow and NumPy arrays.

`compiled` holds the loops that numba compiles once; all that differs between queries is an argument, so a new query of a
known shape compiles nothing. `expression` evaluates scalar expressions a column at a time, `keys` numbers group keys,
`component` and `lower` are the two ends of every aggregate, `partial` is what is exchanged and stored, `pack` its bytes.
Kernels know no queries, plans, sources or engines. An error in a row is reported, never raised: others share the batch.
"""
