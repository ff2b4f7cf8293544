"""SQL text to logical plan: the Spark dialect, over declared streams.

`bind_query(text, catalog)` is all there is to call. The text is parsed (`parse`), FROM is flattened to one branch for each
stream (`flatten`, `relation`), names and types are resolved (`scope`, `expressions`, `operators`, `functions`, `casts`,
`coerce`), and an aggregation gets its window, keys and aggregates (`aggregation`, `windows`, `aggregates`). What is not
supported is refused here, with the place in the text; the syntax tree never leaves this package.

What evaluators must know of the expressions produced is in the docstrings of `functions` (arguments) and `casts` (rules).
"""

from headrace.sql.bind import bind_query
from headrace.sql.catalog import Catalog

__all__ = ["Catalog", "bind_query"]
