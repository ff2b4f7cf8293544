"""The DSL: queries made of Python calls instead of SQL text.

`expression` has columns, literals, operators and aggregates, `select` the Select builder with its clauses in any order, `stream`
flows of steps over the rows of a stream, and `udf` functions written in Python. Every query of the DSL is translated to SQL text,
and then checked, shared and stored like any other query.
"""
