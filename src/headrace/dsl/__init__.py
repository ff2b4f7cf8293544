"""The DSL: queries made of Python calls instead of SQL text.

`expression` has columns, literals, operators and aggregates, and `windows` the windows. `statement` is the one model of a query
and its translation to SQL text. There are two ways to make one: `select`, the Select builder with its clauses in any order, and
`stream`, flows of steps over the rows of a stream. `udf` has functions written in Python. Every query of the DSL is translated to
SQL text, and then checked, shared and stored like any other query.
"""
