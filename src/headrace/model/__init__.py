"""Values that all other packages share: types, expressions, windows, aggregates, streams, durations.

Frozen dataclasses that validate themselves on construction, and pure functions over them. Structural equality is the
sharing test: equal expressions are computed once, no matter which query contains them. This package does no I/O, reads no
clock, and is independent of query syntax and execution; its only import is `errors`.
"""
