"""Types of expressions. The types in `SPARK` were checked against Spark 4.3 with ANSI mode off."""

# ruff: noqa: E501 – a table reads best with one case a line

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from headrace.errors import SchemaError
from headrace.model.expression import Expression
from headrace.model.types import Schema, type_name
from headrace.plan.logical import LogicalQuery, StatelessQuery
from headrace.sql.types import decimal_result_type, find_common_decimal, find_common_type

Bind = Callable[[str], LogicalQuery]

SPARK = {
    "tiny + user_id": "INT", "user_id + big": "BIGINT", "tiny + 2": "INT", "user_id + 100000000000": "BIGINT",
    "f + user_id": "FLOAT", "f + big": "FLOAT", "f + price": "DOUBLE", "f + cost": "DOUBLE", "cost + price": "DOUBLE",
    "f + 1.5": "DOUBLE", "f / f": "DOUBLE", "user_id / user_id": "DOUBLE", "user_id * 1.5D": "DOUBLE",
    "user_id * 1.5": "DECIMAL(13,1)", "cost * 2": "DECIMAL(12,2)", "cost + 1": "DECIMAL(11,2)", "cost + user_id": "DECIMAL(13,2)",
    "cost + tiny": "DECIMAL(11,2)", "cost + big": "DECIMAL(23,2)", "cost * cost": "DECIMAL(21,4)", "cost / cost": "DECIMAL(23,13)",
    "cost / 3": "DECIMAL(14,6)", "cost * cost * cost": "DECIMAL(32,6)", "cost * cost * cost * cost": "DECIMAL(38,6)",
    "cost % 3": "DECIMAL(3,2)", "user_id % 3": "INT", "user_id DIV 2": "BIGINT", "-cost": "DECIMAL(10,2)", "abs(tiny)": "TINYINT",
    "ceil(cost)": "DECIMAL(9,0)", "floor(price)": "BIGINT", "round(cost)": "DECIMAL(9,0)", "round(cost, 1)": "DECIMAL(10,1)",
    "round(cost, -2)": "DECIMAL(9,0)", "round(price, 1)": "DOUBLE", "round(user_id, -1)": "INT", "sqrt(user_id)": "DOUBLE",
    "coalesce(user_id, big)": "BIGINT", "coalesce(cost, user_id)": "DECIMAL(12,2)", "coalesce(cost, price)": "DOUBLE",
    "coalesce(f, user_id)": "FLOAT", "greatest(tiny, cost)": "DECIMAL(10,2)", "coalesce(d, time)": "TIMESTAMP",
    "IF(ok, 1, 2.5)": "DECIMAL(11,1)", "nullif(user_id, big)": "INT", "CASE WHEN ok THEN cost ELSE cost * cost END": "DECIMAL(21,4)",
    "1.50": "DECIMAL(3,2)", "0.05": "DECIMAL(2,2)", "123456789012": "BIGINT", "99999999999999999999": "DECIMAL(20,0)",
    "1e3": "DOUBLE", "1.5D": "DOUBLE", "10L": "BIGINT", "1S": "SMALLINT", "1.5BD": "DECIMAL(2,1)", "- 9223372036854775808": "BIGINT",
    "d + 1": "DATE", "d + INTERVAL 1 DAY": "DATE", "d + INTERVAL 1 HOUR": "TIMESTAMP", "time - INTERVAL 1 DAY": "TIMESTAMP",
    "datediff(d, time)": "INT", "date_trunc('hour', time)": "TIMESTAMP", "trunc(d, 'month')": "DATE", "year(time)": "INT",
    "unix_timestamp(time)": "BIGINT", "length(name)": "INT", "concat(name, user_id)": "STRING", "price > 1": "BOOLEAN",
    "if(ok, CAST(cost AS DECIMAL(38,20)), CAST(cost AS DECIMAL(38,2)))": "DECIMAL(38,2)",
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), SPARK.items())
def test_expression_types_match_spark(bind: Bind, text: str, kind: str) -> None:
    query = bind(f"SELECT {text} AS x FROM purchases")
    assert type_name(query.schema.fields[0].type) == kind


AGGREGATES = {
    "sum(tiny)": "BIGINT", "sum(f)": "DOUBLE", "sum(cost)": "DECIMAL(20,2)", "avg(cost)": "DECIMAL(14,6)", "avg(big)": "DOUBLE",
    "min(name)": "STRING", "max(d)": "DATE", "count(*)": "BIGINT", "stddev(cost)": "DOUBLE", "median(cost)": "DOUBLE",
    "percentile_approx(cost, 0.5)": "DECIMAL(10,2)", "sum(cost * cost * cost)": "DECIMAL(38,6)", "count_if(ok)": "BIGINT",
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), AGGREGATES.items())
def test_aggregate_types_match_spark(bind: Bind, text: str, kind: str) -> None:
    query = bind(f"SELECT {text} AS x FROM TUMBLE(purchases, '5 s')")
    assert type_name(query.schema.fields[0].type) == kind


EXPRESSIONS = {
    # comparisons: the column is not cast if its type can hold the constant
    "tiny > 10": "tiny > 10", "cost >= 5": "cost >= '5.00'", "big = 1.0": "big = 1", "f < 1.5": "f < 1.5",
    "f < 0.1": "CAST(f AS double) < 0.1", "10 < price": "price > 10.0", "tiny > 1000": "CAST(tiny AS int32) > 1000",
    "user_id > 1.5": "user_id > 1", "user_id >= 1.5": "user_id > 1", "user_id <= -1.5": "user_id < -1",
    "user_id = 1.5": "CAST(user_id AS decimal128(11, 1)) = '1.5'", "user_id = NULL": "user_id = NULL",
    "user_id > big": "CAST(user_id AS int64) > big", "time > d": "time > CAST(d AS timestamp[us, tz=UTC])",
    # string literals take the type of the other operand
    "time > '2020-01-01'": "time > '2020-01-01 00:00:00+00:00'", "d = '2020-1-2'": "d = '2020-01-02'", "user_id = ' 7 '": "user_id = 7",
    "price > '1e2'": "price > 100.0", "ok = 'yes'": "ok = True", "d = TIMESTAMP '2020-01-01 00:00:00'": "d = '2020-01-01'",
    # other predicates
    "user_id BETWEEN 1 AND 2": "(user_id >= 1) AND (user_id <= 2)", "user_id <> 1": "user_id <> 1", "user_id != 1": "user_id <> 1",
    "user_id IN (1, '2', NULL)": "in(user_id, 1, 2, NULL)", "user_id IN (1, 2.5)": "(user_id = 1) OR (CAST(user_id AS decimal128(11, 1)) = '2.5')",
    "user_id NOT IN (gem_pack, 3)": "NOT ((user_id = gem_pack) OR (user_id = 3))", "user_id <=> 1": "eq_null_safe(user_id, 1)",
    "ok IS TRUE": "eq_null_safe(ok, True)", "ok IS NOT FALSE": "NOT eq_null_safe(ok, False)", "name IS NOT NULL": "NOT name IS NULL",
    "name NOT LIKE 'a\\_%'": "NOT (name LIKE 'a\\_%')", "name LIKE 'a/_b\\\\' ESCAPE '/'": "name LIKE 'a\\_b\\\\'",
    "name LIKE upper(name)": "name LIKE upper(name)", "name NOT LIKE '%' || name": "NOT (name LIKE concat('%', name))",
    "name LIKE NULL": "name LIKE NULL", "NULL LIKE name": "NULL LIKE name", "'abc' LIKE name": "'abc' LIKE name",
    "name LIKE name ESCAPE '/'": "like(name, name, '/')", "name NOT LIKE name ESCAPE '\\\\'": "NOT (name LIKE name)",
    "name ILIKE name": "lower(name) LIKE lower(name)", "startswith(name, lower(name))": "starts_with(name, lower(name))",
    "name ILIKE 'A%'": "lower(name) LIKE 'a%'", "name RLIKE r'\\d+'": "rlike(name, '\\d+')", "1 = 1 AND ok": "ok", "NOT TRUE": "False",
    "user_id IS DISTINCT FROM 1": "NOT eq_null_safe(user_id, 1)",
    # arithmetic
    "user_id + 1": "user_id + 1", "2 * 3 + user_id": "6 + user_id", "-(3)": "-3", "user_id / 2": "CAST(user_id AS double) / 2.0",
    "user_id DIV 2": "CAST(user_id AS int64) DIV 2", "cost % 3": "cost % '3'", "big + NULL": "big + NULL",
    # functions
    "IF(ok, 1, 2.5)": "case(ok, '1.0', '2.5')", "nvl(tiny, 1)": "coalesce(CAST(tiny AS int32), 1)",
    "CASE gem_pack WHEN 1 THEN 'a' END": "case(gem_pack = 1, 'a', NULL)", "nullif(name, '')": "case(name = '', NULL, name)",
    "left(name, 2)": "substring(name, 1, 2)", "right(name, 2)": "substring(name, -2, 2147483647)", "substr(name, 3)": "substring(name, 3, 2147483647)",
    "right(name, 0)": "substring(name, 1, 0)", "name || user_id": "concat(name, CAST(user_id AS string))", "ceil(user_id)": "CAST(user_id AS int64)",
    "round(user_id)": "user_id", "round(price)": "round(price, 0)", "log(price)": "ln(price)", "log(2, price)": "ln(price) / ln(2.0)",
    "EXTRACT(HOUR FROM time)": "hour(time)", "date_part('dow', d)": "dayofweek(d)", "year(time)": "year(time)", "date_trunc('MON', d)": "date_trunc('month', CAST(d AS timestamp[us, tz=UTC]))",
    "date_sub(d, 1)": "date_add(d, -1)", "d - 1": "date_add(d, -1)", "time - INTERVAL '1 minute 30 seconds'": "time_add(time, -90000000)",
    "INTERVAL 1 DAY + d": "date_add(d, 1)", "unix_seconds(time)": "unix_seconds(time)", "to_date(time)": "CAST(time AS date32[day])",
    "log(1, price)": "case(ln(1.0) = 0.0, ln(price) * inf, ln(price) / ln(1.0))", "TRY_CAST(price AS INT)": "try_cast(price)",
    "EXTRACT(SECOND FROM time)": "second_with_fraction(time)", "coalesce(price, 'none')": "coalesce(CAST(price AS string), 'none')",
    "d IN ('2020-01-01')": "in(d, '2020-01-01')", "price IN ('1.0')": "in(price, 1.0)", "NULL / cost": "NULL",
    "INT(price)": "CAST(price AS int32)", "price::STRING": "CAST(price AS string)", "coalesce(NULL, NULL) IS NULL": "True",
    "greatest(user_id, big)": "greatest(CAST(user_id AS int64), big)", "'a' 'b'": "'ab'", "isnotnull(d)": "NOT d IS NULL",
}  # fmt: skip


def bind_output(bind: Bind, text: str) -> Expression:
    query = bind(f"SELECT {text} AS x FROM purchases")
    assert isinstance(query, StatelessQuery)
    return query.branches[0].outputs[0]


@pytest.mark.parametrize(("text", "bound"), EXPRESSIONS.items())
def test_expressions_bind_to_normalized_text(bind: Bind, text: str, bound: str) -> None:
    assert str(bind_output(bind, text)) == bound


CONSTANTS = {
    "CAST('12' AS INT)": "12", "INT(' 12.9 ')": "12", "INT('x')": "NULL", "TINYINT('300')": "NULL", "INT(-1.9)": "-1", "INT(1.9D)": "1",
    "DOUBLE('inf')": "inf", "FLOAT('0.1')": "0.10000000149011612", "BOOLEAN('N')": "False", "BOOLEAN('?')": "NULL", "INT(TRUE)": "1",
    "CAST('1.005' AS DECIMAL(3,2))": "'1.01'", "CAST(-2.5 AS DECIMAL(2,0))": "'-3'", "CAST(0.1D AS DECIMAL(5,3))": "'0.100'",
    "STRING(12)": "'12'", "STRING(TRUE)": "'true'", "STRING(1.50)": "'1.50'", "STRING(DATE '2020-01-02')": "'2020-01-02'",
    "DATE '2020-02-03'": "'2020-02-03'", "DATE('2020')": "'2020-01-01'", "DATE('2020-13-01')": "NULL", "DATE('2020-02-03 23:59')": "'2020-02-03'",
    "TIMESTAMP '2020-02-03 04:05:06.7'": "'2020-02-03 04:05:06.700000+00:00'", "TIMESTAMP('2020-02-03T04:05:06Z')": "'2020-02-03 04:05:06+00:00'",
    "TIMESTAMP('2020-01-01 00:00:00+02:00')": "'2019-12-31 22:00:00+00:00'", "TIMESTAMP(DATE '2020-01-01')": "'2020-01-01 00:00:00+00:00'",
    "TIMESTAMP('2020-02-03T04:05Z')": "NULL", "TIMESTAMP('2020-02-03 4')": "'2020-02-03 04:00:00+00:00'", "STRING(1e-7)": "'1.0E-7'",
    "STRING(0.0000001)": "'1E-7'", "TRY_CAST(0.0000001 AS STRING)": "'0.0000001'", "TRY_CAST(300 AS TINYINT)": "NULL", "TRY_CAST('1.5' AS INT)": "NULL",
    "TRY_CAST('7' AS INT)": "7", "STRING(TIMESTAMP '2020-01-01 01:02:03.50')": "'2020-01-01 01:02:03.5'", "FLOAT(16777217)": "16777216.0",
    "DATE(TIMESTAMP '2020-01-01 23:00:00')": "'2020-01-01'", "TIMESTAMP('2020-01-01 25:00')": "NULL", "CAST(NULL AS DATE)": "NULL",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), CONSTANTS.items())
def test_casts_of_constants_are_folded(bind: Bind, text: str, value: str) -> None:
    assert str(bind_output(bind, text)) == value


def test_a_decimal_type_has_ten_digits_and_no_scale_unless_it_says_so() -> None:
    declared = Schema.parse("a DECIMAL, b DECIMAL(5), c DEC(5, 2), d numeric ( 38 , 38 )")
    assert [type_name(field.type) for field in declared] == ["DECIMAL(10,0)", "DECIMAL(5,0)", "DECIMAL(5,2)", "DECIMAL(38,38)"]


@pytest.mark.parametrize("kind", ["DECIMAL(0)", "DECIMAL(39)", "DECIMAL(5, 6)"])
def test_a_decimal_type_out_of_range_is_refused(kind: str) -> None:
    with pytest.raises(SchemaError, match="is out of range"):
        Schema.parse(f"a {kind}")


def test_a_quoted_column_name_may_contain_commas_and_quotes() -> None:
    schema = Schema.parse("`a, b` INT, `c``d` DECIMAL(10, 2), `(` STRING")
    assert schema.names == ("a, b", "c`d", "(")
    assert Schema.parse(schema.to_ddl()) == schema


def test_common_types() -> None:
    assert find_common_type(pa.int8(), pa.int64()) == pa.int64()
    assert find_common_type(pa.null(), pa.string()) == pa.string()
    assert find_common_type(pa.string(), pa.int32()) is None
    assert find_common_type(pa.bool_(), pa.int32()) is None


def test_decimal_overflow_reduces_the_scale() -> None:
    wide, fine = pa.decimal128(38, 2), pa.decimal128(38, 20)
    assert find_common_decimal(wide, fine) == pa.decimal128(38, 2)
    assert decimal_result_type("add", wide, fine) == pa.decimal128(38, 6)
    assert decimal_result_type("mul", fine, fine) == pa.decimal128(38, 6)
    assert decimal_result_type("div", pa.decimal128(10, 2), pa.decimal128(10, 2)) == pa.decimal128(23, 13)
