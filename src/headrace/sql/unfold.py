"""Binds LATERAL VIEW explode(…), which unnests the list that a UDF returns: one row per element."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.schema import Field
from headrace.plan.unfolded import UnnestedStream, unnest_stream
from headrace.sql.expressions import bind_expression
from headrace.sql.parse import SqlSource
from headrace.sql.relation import Relation, RelationBranch
from headrace.sql.scope import Scope
from headrace.sql.user_functions import call_user_function, get_user_function

_LATERAL_VIEW_USAGE = "write LATERAL VIEW explode(words(text)) AS word, with a registered function that returns ARRAY<…>"


def bind_lateral_view(
    source: SqlSource, relation: Relation, view: exp.Lateral, unnested_streams: dict[str, UnnestedStream]
) -> Relation:
    """Return the relation with a column for the elements, one row per element; add its streams to `unnested_streams`."""
    try:
        return _unnest_relation(source, relation, view, unnested_streams)
    except SqlError as problem:
        raise source.with_location(problem, view) from None


def _unnest_relation(
    source: SqlSource, relation: Relation, view: exp.Lateral, unnested_streams: dict[str, UnnestedStream]
) -> Relation:
    alias, generator = view.args.get("alias"), view.this
    names = [column.name for column in alias.columns] if alias is not None else []
    call = generator.expressions[0] if isinstance(generator, exp.Anonymous) and len(generator.expressions) == 1 else None
    function = None if call is None else get_user_function(call)
    if call is None or generator.name.lower() != "explode" or len(names) != 1 or view.args.get("outer"):
        raise SqlError("this LATERAL VIEW is not supported", hint=_LATERAL_VIEW_USAGE)
    if function is None or not pa.types.is_list(function.result_type):
        raise SqlError("only lists of registered functions can be exploded", hint=_LATERAL_VIEW_USAGE)
    if relation.find_field(names[0]) is not None:
        raise SqlError(f"column '{names[0]}' already exists", hint="choose another name for the elements")
    if any(branch.stream.name.startswith("~") for branch in relation.branches):
        raise SqlError("results of windows cannot be exploded", hint="explode rows before they are aggregated or joined")
    scope = Scope(source, relation, "LATERAL VIEW")
    values = call_user_function(function, [bind_expression(scope, arg) for arg in call.expressions], lists=True)

    def unnest_branch(branch: RelationBranch) -> RelationBranch:
        unnested = unnest_stream(branch.stream, relation.push_down(values, branch))
        unnested_streams[unnested.name] = unnested
        return replace(branch, stream=unnested.stream, columns=(*branch.columns, unnested.element))

    fields = (*relation.fields, Field(names[0], function.result_type.value_type))
    return replace(relation, fields=fields, branches=tuple(map(unnest_branch, relation.branches)))
