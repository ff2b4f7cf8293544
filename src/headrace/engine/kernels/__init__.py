"""Loops over rows and cells that numba compiles once and caches on disk.

All kernels are data-driven: constants, boundaries, spans and offsets are arguments, so a new query of a known shape compiles
nothing. A `valid` array of length zero means that there are no NULLs. An id or cell of −1 means: dropped.
"""
