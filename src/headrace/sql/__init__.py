"""The SQL front end: binds text in the Spark dialect, over declared streams, to a logical plan.

The entry point is `bind_query(text, catalog)`. It parses the text (`parse`), flattens FROM to one branch per stream
(`flatten`, `relation`), resolves names and types (`scope`, `expressions`, `operators`, `functions`, `casts`, `coerce`), and
binds the window, keys and aggregates of an aggregation (`aggregation`, `windows`, `aggregates`) or the inputs of a join
(`joins`, `sliding`). It rejects unsupported SQL with the location in the text. The syntax tree never leaves this package.

The contract between binder and evaluators is in the docstrings of `functions` (arguments) and `casts` (conversion rules).
"""

from headrace.sql.bind import bind_query
from headrace.sql.catalog import Catalog

__all__ = ["Catalog", "bind_query"]
