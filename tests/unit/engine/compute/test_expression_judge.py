"""Judges expressions over all pairs of types by the reference and by DuckDB; `make expressions` judges every one of them.

`tests/spark/test_expressions_against_spark.py` judges the same expressions by Spark SQL.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.model.expression import Expression
from support.expression_judge import (
    ALL,
    ERROR,
    ask_engine,
    ask_reference,
    bind_probes,
    describe_column,
    find_crashes,
    list_inputs,
    select_probes,
)
from support.expression_probes import DDL, TYPES, Probe, build_rows, list_probes

TYPE_LETTERS = {
    kind.sql: {"BOOLEAN": "b", "STRING": "s", "DATE": "d", "TIMESTAMP": "t", "FLOAT": "f", "DOUBLE": "f"}.get(
        kind.sql, "m" if kind.sql.startswith("DECIMAL") else "i"
    )
    for kind in TYPES
}
"""integer, float, m for decimal, boolean, string, date, t for timestamp"""
_NUMBERS = "ff fi fm if ii im mf mi mm"
ACCEPTED_TYPES = {  # operators → the types of operands with which they are accepted; all other types are refused
    "% * / pow": _NUMBERS,
    "+ -": f"{_NUMBERS} di",
    "DIV": "ii",
    "< <=> = >= case coalesce greatest if in least nullif": f"{_NUMBERS} bb dd dt ss td tt",
    "CAST TRY_CAST": f"{_NUMBERS} bb bf bi bm bs dd ds dt fb fs ib is mb ms sb sd sf si sm ss st td ts tt",
    "concat": " ".join(left + right for left in "bdfimst" for right in "bdfimst"),
    "contains endswith startswith": "ss",
    "date_add date_sub": "di ti",
    "datediff": "dd dt td tt",
    "-x abs(x) ceil(x) exp(x) floor(x) ln(x) log10(x) log2(x) negative(x) positive(x) round(x) sign(x) sqrt(x)": "f i m",
    "NOT_x x_IS_TRUE": "b",
    "decimal(x) double(x) int(x)": "b f i m s",
    "to_date(x) to_timestamp(x)": "d s t",
    "day(x) dayofweek(x) dayofyear(x) hour(x) minute(x) month(x) quarter(x) second(x) unix_seconds(x) unix_timestamp(x)": "d t",
    "weekday(x) year(x)": "d t",
    "contains(x,_'1') endswith(x,_'0') isnotnull(x) isnull(x) left(x,_2) length(x) lower(x) ltrim(x)": "b d f i m s t",
    "replace(x,_'0',_'o') reverse(x) right(x,_2) rtrim(x) startswith(x,_'-') string(x) substring(x,_2)": "b d f i m s t",
    "trim(x) upper(x) x_||_''": "b d f i m s t",
}
_DUCKDB_TYPES = {"FLOAT", "DECIMAL(38,0)", "DECIMAL(38,18)", "DECIMAL(38,38)"}.symmetric_difference(TYPE_LETTERS)
_DUCKDB_NUMBERS = {"TINYINT", "SMALLINT", "INT", "BIGINT", "DOUBLE"}
DUCKDB_OPERATORS = {  # where the dialects agree: operators → types; elsewhere result types, wide decimals or ±0.0 differ
    "= < >= coalesce if case nullif in": _DUCKDB_TYPES,
    "+ - * greatest least": _DUCKDB_NUMBERS - {"DOUBLE"},
    "abs(x)": _DUCKDB_NUMBERS,
    "year(x) quarter(x) month(x) day(x) dayofyear(x)": {"DATE", "TIMESTAMP"},
    "hour(x) minute(x)": {"TIMESTAMP"},
    "length(x) contains": {"STRING"},
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return build_rows()


@pytest.fixture(scope="module")
def bound() -> dict[Probe, Expression]:
    return bind_probes(select_probes())[0]


def test_the_accepted_types_are_those_of_the_table(bound: dict[Probe, Expression]):
    expected = {(name, types) for names, pairs in ACCEPTED_TYPES.items() for name in names.split() for types in pairs.split()}
    selected = [probe for probe in select_probes() if all(kind in TYPE_LETTERS for kind in probe.types) and len(probe.types) <= 2]
    for probe in selected:
        types = "".join(TYPE_LETTERS[kind] for kind in probe.types)
        assert ((probe.operator.replace(" ", "_"), types) in expected) == (probe in bound), probe
    assert len(selected) > (4000 if ALL else 300)


def test_no_kernel_raises_and_the_reference_agrees(bound: dict[Probe, Expression], table: pa.Table):
    rows, crashes, differences = table.to_pylist(), [], []
    for probe, expression in bound.items():
        try:
            engine = ask_engine(expression, table)
        except Exception:  # noqa: BLE001
            crashes += find_crashes(probe, expression, table)
            continue
        for row, ours, theirs in zip(rows, engine.rows, ask_reference(expression, rows).rows, strict=True):
            if ours != theirs:
                differences.append(f"{probe.sql} of {list_inputs(probe, row)}: {ours}, in the reference {theirs}")
    assert not crashes, "\n".join(crashes[:50])
    assert not differences, "\n".join(differences[:50])
    assert len(bound) > (6000 if ALL else 400)


def test_a_query_emits_what_the_evaluator_computes(bound: dict[Probe, Expression], table: pa.Table):
    """Run about 200 outputs as one stateless query."""
    answers = {probe: ask_engine(expression, table) for probe, expression in list(bound.items())[:: len(bound) // 200]}
    total = {probe: answer for probe, answer in answers.items() if ERROR not in answer.rows}
    with hr.Session(backend="local") as session:
        source = hr.MemorySource(DDL)
        session.create_stream("s", source, time="at")
        query = session.add(f"SELECT {', '.join(f'{probe.sql} AS x{n}' for n, probe in enumerate(total))} FROM s")
        source.append(table)
        session.advance()
        results = query.results()
    assert results.num_rows == table.num_rows
    for column, (probe, answer) in zip(results.columns, total.items(), strict=False):
        assert tuple(describe_column(column)) == answer.rows, probe


def ask_duckdb(probes: Sequence[Probe], table: pa.Table) -> pa.Table:
    """Evaluate with DuckDB; a row on which an expression fails is NULL."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET threads = 1")
        connection.register("s", table)
        outputs = ", ".join(f"TRY({probe.sql}) AS x{n}" for n, probe in enumerate(probes))
        return connection.sql(f"SELECT {outputs} FROM s").to_arrow_table()


def is_judged_by_duckdb(probe: Probe) -> bool:
    return any(probe.operator in names.split() and types.issuperset(probe.types) for names, types in DUCKDB_OPERATORS.items())


def test_duckdb_agrees(table: pa.Table):
    bound, _ = bind_probes(filter(is_judged_by_duckdb, list_probes() if ALL else list_probes()[::5]))
    results = ask_duckdb(list(bound), table)
    for column, (probe, expression) in zip(results.columns, bound.items(), strict=True):
        answer = ask_engine(expression, table)
        assert list(describe_column(column)) == [None if text == ERROR else text for text in answer.rows], probe
    assert len(bound) > (500 if ALL else 100)
