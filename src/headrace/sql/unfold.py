"""LATERAL VIEW: a row for each element of a list that a registered function returns."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.schema import Field
from headrace.plan.unfolded import Unfolded, unfolded
from headrace.sql.expressions import bind
from headrace.sql.parse import Source
from headrace.sql.relation import Branch, Relation
from headrace.sql.scope import Scope
from headrace.sql.user_functions import apply, user_function

_USAGE = "write LATERAL VIEW explode(words(text)) AS word, with a registered function that returns ARRAY<…>"


def unfold(source: Source, relation: Relation, view: exp.Lateral, known: dict[str, Unfolded]) -> Relation:
    """Return the rows with one more column, once for each element; streams that are made for it go into `known`."""
    try:
        return _unfold(source, relation, view, known)
    except SqlError as problem:
        raise source.placed(problem, view) from None


def _unfold(source: Source, relation: Relation, view: exp.Lateral, known: dict[str, Unfolded]) -> Relation:
    alias, lists = view.args.get("alias"), view.this
    names = [column.name for column in alias.columns] if alias is not None else []
    call = lists.expressions[0] if isinstance(lists, exp.Anonymous) and len(lists.expressions) == 1 else None
    function = None if call is None else user_function(call)
    if call is None or lists.name.lower() != "explode" or len(names) != 1 or view.args.get("outer"):
        raise SqlError("this LATERAL VIEW is not supported", hint=_USAGE)
    if function is None or not pa.types.is_list(function.result):
        raise SqlError("only lists of registered functions can be exploded", hint=_USAGE)
    if relation.find(names[0]) is not None:
        raise SqlError(f"column '{names[0]}' is already there", hint="choose another name for the elements")
    if any(branch.stream.name.startswith("~") for branch in relation.branches):
        raise SqlError("results of windows cannot be exploded", hint="explode rows before they are aggregated or joined")
    scope = Scope(source, relation, "LATERAL VIEW")
    values = apply(function, [bind(scope, arg) for arg in call.expressions], lists=True)

    def branched(branch: Branch) -> Branch:
        made = unfolded(branch.stream, relation.push(values, branch))
        known[made.name] = made
        return replace(branch, stream=made.stream, columns=(*branch.columns, made.element))

    fields = (*relation.fields, Field(names[0], function.result.value_type))
    return replace(relation, fields=fields, branches=tuple(map(branched, relation.branches)))
