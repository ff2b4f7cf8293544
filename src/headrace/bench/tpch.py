"""The eight relations of TPC-H as streams: keys, foreign keys, proportions, and a few other columns.

A relation is generated as a whole, in random order, and repeats. `ROWS_AT_SCALE_1` has its rows at scale factor 1; region and
nation have 5 and 25 rows at any scale. Above scale 1, a relation is a random sample of its keys with the size of scale 1, so that
it fits in memory. Foreign keys are uniform over the keys they refer to: two rows of different relations match with a probability
given by `key_domains`, at any rate and seed.

Unlike Nexmark's, keys do not advance when a pool repeats: selectivities, and optimizers that use them, depend on the range of a
key; and columns that are not keys of each other, such as c_custkey and n_nationkey, stay comparable. Results therefore grow with
the rate: a window with twice the rows has twice the matches per row. To keep the matches per row at r times the rate, use r
times the scale.

Differences from TPC-H: order keys have no gaps, all customers (not two in three) have orders, the total price is random, dates
are days since 1970, and there are no comments, names or addresses. An order is P while its date leaves open whether its lines
are shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.schema import Schema

SCALE = 0.01
SMALLEST, LARGEST = 0.001, 100.0  # ten suppliers; keys that fit an INT
ROWS: Mapping[str, int] = {  # at scale factor 1
    "region": 5, "nation": 25, "supplier": 10_000, "part": 200_000, "partsupp": 800_000, "customer": 150_000,
    "orders": 1_500_000, "lineitem": 6_000_000,
}  # fmt: skip
SHARES: Mapping[str, float] = {  # rows in thousands; region and nation are slow, but not idle
    **{name: rows / 1000 for name, rows in ROWS.items()},
    "nation": 1.0,
    "region": 0.5,
}
SCHEMAS: Mapping[str, Schema] = {
    "region": Schema.parse("r_regionkey INT, r_name STRING, time TIMESTAMP"),
    "nation": Schema.parse("n_nationkey INT, n_name STRING, n_regionkey INT, time TIMESTAMP"),
    "supplier": Schema.parse("s_suppkey INT, s_nationkey INT, s_acctbal DOUBLE, time TIMESTAMP"),
    "part": Schema.parse("p_partkey INT, p_brand STRING, p_size INT, p_retailprice DOUBLE, time TIMESTAMP"),
    "partsupp": Schema.parse("ps_partkey INT, ps_suppkey INT, ps_availqty INT, ps_supplycost DOUBLE, time TIMESTAMP"),
    "customer": Schema.parse("c_custkey INT, c_nationkey INT, c_acctbal DOUBLE, c_mktsegment STRING, time TIMESTAMP"),
    "orders": Schema.parse(
        "o_orderkey INT, o_custkey INT, o_orderstatus STRING, o_totalprice DOUBLE, o_orderdate INT, o_orderpriority STRING, "
        "time TIMESTAMP"
    ),
    "lineitem": Schema.parse(
        "l_orderkey INT, l_partkey INT, l_suppkey INT, l_linenumber INT, l_quantity INT, l_extendedprice DOUBLE, "
        "l_discount DOUBLE, l_returnflag STRING, l_linestatus STRING, l_shipdate INT, time TIMESTAMP"
    ),
}

_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS = (  # with the region of each
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0),
    ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2),
    ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")
_PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_BRANDS = tuple(f"Brand#{first}{second}" for first in range(1, 6) for second in range(1, 6))
_SUPPLIERS, _MOST_LINES, _SIZES = 4, 7, 50  # suppliers of a part, lines of an order, sizes of parts and quantities of lines
_FIRST_DAY, _DAYS, _TODAY, _SHIPPED_WITHIN = 8_035, 2_406, 1_263, 121  # 1992-01-01; lines shipped after _CURRENT_DAY are open
SAME_STATUS = 1 - (_SHIPPED_WITHIN - 1) / _DAYS  # share of lines with the status of their order

_Integers: TypeAlias = npt.NDArray[np.int64]
_Columns: TypeAlias = dict[str, pa.Array]


def rows(relation: str, scale: float) -> int:
    """Return the number of rows of a relation; for lineitem the mean, because an order has one to seven lines."""
    return ROWS[relation] if relation in {"region", "nation"} else round(ROWS[relation] * scale)


def domains(scale: float) -> Mapping[str, range]:
    """Return the values of every join column; all values of a column are equally frequent."""
    nations, regions, sizes = range(len(_NATIONS)), range(len(_REGIONS)), range(1, _SIZES + 1)
    suppliers, parts, customers, orders = (range(1, rows(name, scale) + 1) for name in ("supplier", "part", "customer", "orders"))
    return {
        "r_regionkey": regions, "n_regionkey": regions, "n_nationkey": nations, "s_nationkey": nations, "c_nationkey": nations,
        "s_suppkey": suppliers, "ps_suppkey": suppliers, "l_suppkey": suppliers, "p_partkey": parts, "ps_partkey": parts,
        "l_partkey": parts, "c_custkey": customers, "o_custkey": customers, "o_orderkey": orders, "l_orderkey": orders,
        "p_size": sizes, "l_quantity": sizes,
    }  # fmt: skip


def columns(relation: str, seed: int, scale: float) -> _Columns:
    """Generate the columns, without the time, of a relation in random row order."""
    rng = np.random.default_rng([seed, list(ROWS).index(relation)])
    arrays = _MAKERS[relation](rng, scale)
    order = pa.array(rng.permutation(len(next(iter(arrays.values())))))
    return {name: column.take(order) for name, column in arrays.items()}


def _keys(rng: np.random.Generator, relation: str, scale: float) -> _Integers:
    """Return the keys of a relation: all of them, or above scale 1 a sample with the size of scale 1."""
    if scale <= 1:
        return np.arange(1, rows(relation, scale) + 1)
    return np.sort(rng.choice(rows(relation, scale), ROWS[relation], replace=False)) + 1


def _reference(rng: np.random.Generator, relation: str, scale: float, count: int) -> _Integers:
    """Draw foreign keys to a relation whose keys start at 1."""
    return rng.integers(1, rows(relation, scale) + 1, count)


def _money(rng: np.random.Generator, lowest: float, highest: float, count: int) -> pa.Array:
    return pa.array(np.round(rng.uniform(lowest, highest, count), 2))


def _words(words: Sequence[str], indexes: _Integers) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(indexes))


def _drawn(rng: np.random.Generator, words: Sequence[str], count: int) -> pa.Array:
    return _words(words, rng.integers(0, len(words), count))


def _int(values: _Integers) -> pa.Array:
    return pa.array(values.astype(np.int32))


def _supplier_of(part: _Integers, number: _Integers, scale: float) -> _Integers:
    """Return the key of supplier number 0 … 3 of each part; the four differ, and all suppliers have equally many parts."""
    suppliers = rows("supplier", scale)
    return (part - 1 + (part - 1) // suppliers + number * (suppliers // _SUPPLIERS)) % suppliers + 1


def _retail_cents(part: _Integers) -> _Integers:
    return 90_000 + part // 10 % 20_001 + 100 * (part % 1_000)


def _ordered(order: _Integers) -> _Integers:
    """Return the day of each order, derived from its key alone, so that lines and orders of all seeds agree."""
    return (order * 2_654_435_761 % (1 << 32)) * _DAYS >> 32


def _region(_: np.random.Generator, scale: float) -> _Columns:
    del scale
    return {"r_regionkey": _int(np.arange(len(_REGIONS))), "r_name": pa.array(_REGIONS)}


def _nation(_: np.random.Generator, scale: float) -> _Columns:
    del scale
    names, regions = zip(*_NATIONS, strict=True)
    return {"n_nationkey": _int(np.arange(len(names))), "n_name": pa.array(names), "n_regionkey": _int(np.array(regions))}


def _supplier(rng: np.random.Generator, scale: float) -> _Columns:
    key = _keys(rng, "supplier", scale)
    nation = rng.integers(0, len(_NATIONS), len(key))
    return {"s_suppkey": _int(key), "s_nationkey": _int(nation), "s_acctbal": _money(rng, -999.99, 9999.99, len(key))}


def _part(rng: np.random.Generator, scale: float) -> _Columns:
    key = _keys(rng, "part", scale)
    return {
        "p_partkey": _int(key),
        "p_brand": _drawn(rng, _BRANDS, len(key)),
        "p_size": _int(rng.integers(1, _SIZES + 1, len(key))),
        "p_retailprice": pa.array(_retail_cents(key) / 100),
    }


def _partsupp(rng: np.random.Generator, scale: float) -> _Columns:
    part = np.repeat(_keys(rng, "part", scale), _SUPPLIERS)
    number = np.arange(len(part)) % _SUPPLIERS
    return {
        "ps_partkey": _int(part),
        "ps_suppkey": _int(_supplier_of(part, number, scale)),
        "ps_availqty": _int(rng.integers(1, 10_000, len(part))),
        "ps_supplycost": _money(rng, 1, 1000, len(part)),
    }


def _customer(rng: np.random.Generator, scale: float) -> _Columns:
    key = _keys(rng, "customer", scale)
    return {
        "c_custkey": _int(key),
        "c_nationkey": _int(rng.integers(0, len(_NATIONS), len(key))),
        "c_acctbal": _money(rng, -999.99, 9999.99, len(key)),
        "c_mktsegment": _drawn(rng, _SEGMENTS, len(key)),
    }


def _orders(rng: np.random.Generator, scale: float) -> _Columns:
    key = _keys(rng, "orders", scale)
    day = _ordered(key)
    shipped, started = day + _SHIPPED_WITHIN <= _TODAY, day < _TODAY
    return {
        "o_orderkey": _int(key),
        "o_custkey": _int(_reference(rng, "customer", scale, len(key))),
        "o_orderstatus": _words(("F", "P", "O"), 2 - shipped.astype(np.int64) - started),
        "o_totalprice": _money(rng, 900, 450_000, len(key)),
        "o_orderdate": _int(_FIRST_DAY + day),
        "o_orderpriority": _drawn(rng, _PRIORITIES, len(key)),
    }


def _lineitem(rng: np.random.Generator, scale: float) -> _Columns:
    orders = _keys(rng, "orders", scale)
    lines = rng.integers(1, _MOST_LINES + 1, len(orders))
    order = np.repeat(orders, lines)
    count = len(order)
    part = _reference(rng, "part", scale, count)
    quantity = rng.integers(1, _SIZES + 1, count)
    shipped = _ordered(order) + rng.integers(1, _SHIPPED_WITHIN + 1, count)
    still_open = shipped > _TODAY
    return {
        "l_orderkey": _int(order),
        "l_partkey": _int(part),
        "l_suppkey": _int(_supplier_of(part, rng.integers(0, _SUPPLIERS, count), scale)),
        "l_linenumber": _int(np.arange(count) - np.repeat(np.cumsum(lines) - lines, lines) + 1),
        "l_quantity": _int(quantity),
        "l_extendedprice": pa.array(quantity * _retail_cents(part) / 100),
        "l_discount": pa.array(rng.integers(0, 11, count) / 100),
        "l_returnflag": _words(("A", "R", "N"), np.where(still_open, 2, rng.integers(0, 2, count))),
        "l_linestatus": _words(("F", "O"), still_open.astype(np.int64)),
        "l_shipdate": _int(_FIRST_DAY + shipped),
    }


_MAKERS: Mapping[str, Callable[[np.random.Generator, float], _Columns]] = {
    "region": _region,
    "nation": _nation,
    "supplier": _supplier,
    "part": _part,
    "partsupp": _partsupp,
    "customer": _customer,
    "orders": _orders,
    "lineitem": _lineitem,
}
