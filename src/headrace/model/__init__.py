"""Values that every other package agrees on: schemas, expressions, windows, aggregates, streams, lengths of time.

Frozen dataclasses that check themselves when they are made, and pure functions over them. Structural equality is the
sharing test: two expressions that are equal are computed once, whoever wrote them. Nothing here does I/O, reads a clock,
or knows how a query is written or run; the only import is `errors`.
"""
