"""The SQL front end: binds text in the Spark dialect, over declared streams, to a logical plan.

The entry point is `bind_query(text, catalog)` in `binder`. It parses the text (`parser`), flattens FROM to one branch per stream
(`select`, `relation`), resolves names and types (`scope`, `expressions`, `operators`, `functions`, `casts`, `types`), and binds
the window, keys and aggregates of an aggregation (`aggregation`, `windows`, `aggregate_functions`) or the inputs of a join
(`window_join`, `aggregation_join`, `sliding_join`). It rejects unsupported SQL with the location in the text. The syntax tree
never leaves this package.

The contract between binder and evaluators is in the docstrings of `functions` (arguments) and `casts` (conversion rules).
"""

from headrace.sql.binder import bind_query
from headrace.sql.scope import Catalog

__all__ = ["Catalog", "bind_query"]
