"""The eight relations of TPC-H as streams: their keys, foreign keys and proportions, and a few columns beside them.

A relation is made as a whole, in an order that is drawn, and comes again and again. At scale factor 1 it has the rows of
`ROWS`; of region and nation there are 5 and 25 at any scale. Of what would be larger than at scale 1, as many keys as there
are then are drawn, so that it can be held. Foreign keys are drawn evenly from all keys they refer to: a row of one relation
and a row of another match with a chance that `domains` tells, whatever the rate and the seeds.

Keys do not advance when a pool comes again, as Nexmark's do: the range of a key is what selectivities, and optimizers that go
by them, rest on; and columns that are no keys of each other, such as c_custkey and n_nationkey, stay comparable. So results
grow with the rate: a window that holds twice the rows has twice the partners for each. For r times the rate take r times
the scale, and a row has as many partners as before.

Ours are: order keys without gaps, orders of all customers (not of two in three), a total price that is drawn, dates as days
since 1970, no comments, names or addresses. An order is P while lines of its date may or may not have been shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.schema import Schema

SCALE = 0.01
SMALLEST, LARGEST = 0.001, 100.0  # scales: ten suppliers, and keys that an INT can hold
ROWS: Mapping[str, int] = {  # at scale factor 1
    "region": 5, "nation": 25, "supplier": 10_000, "part": 200_000, "partsupp": 800_000, "customer": 150_000,
    "orders": 1_500_000, "lineitem": 6_000_000,
}  # fmt: skip
SHARES: Mapping[str, float] = {  # of the rate: as the rows, in thousands; region and nation are slow, but never silent
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
_BRANDS = tuple(f"Brand#{one}{two}" for one in range(1, 6) for two in range(1, 6))
_SUPPLIERS, _MOST_LINES, _SIZES = 4, 7, 50  # suppliers of a part, lines of an order, sizes of parts and quantities of lines
_FIRST_DAY, _DAYS, _TODAY, _SHIPPED_WITHIN = 8_035, 2_406, 1_263, 121  # 1992-01-01; days; what is shipped after it is open
SAME_STATUS = 1 - (_SHIPPED_WITHIN - 1) / _DAYS  # how often a line has the status of its order

_Integers: TypeAlias = npt.NDArray[np.int64]
_Columns: TypeAlias = dict[str, pa.Array]


def rows(relation: str, scale: float) -> int:
    """Return how many rows a relation has; of lineitem that is the mean, for an order has one to seven lines."""
    return ROWS[relation] if relation in {"region", "nation"} else round(ROWS[relation] * scale)


def domains(scale: float) -> Mapping[str, range]:
    """Return the values of every column that can be joined by; each of them is equally frequent."""
    nations, regions, sizes = range(len(_NATIONS)), range(len(_REGIONS)), range(1, _SIZES + 1)
    suppliers, parts, customers, orders = (range(1, rows(name, scale) + 1) for name in ("supplier", "part", "customer", "orders"))
    return {
        "r_regionkey": regions, "n_regionkey": regions, "n_nationkey": nations, "s_nationkey": nations, "c_nationkey": nations,
        "s_suppkey": suppliers, "ps_suppkey": suppliers, "l_suppkey": suppliers, "p_partkey": parts, "ps_partkey": parts,
        "l_partkey": parts, "c_custkey": customers, "o_custkey": customers, "o_orderkey": orders, "l_orderkey": orders,
        "p_size": sizes, "l_quantity": sizes,
    }  # fmt: skip


def columns(relation: str, seed: int, scale: float) -> _Columns:
    """Return the columns (but for the time) of a relation, its rows in an order that is drawn."""
    chance = np.random.default_rng([seed, list(ROWS).index(relation)])
    made = _MAKERS[relation](chance, scale)
    order = pa.array(chance.permutation(len(next(iter(made.values())))))
    return {name: column.take(order) for name, column in made.items()}


def _keys(chance: np.random.Generator, relation: str, scale: float) -> _Integers:
    """Return the keys of a relation: all of them, or as many as there are at scale 1."""
    if scale <= 1:
        return np.arange(1, rows(relation, scale) + 1)
    return np.sort(chance.choice(rows(relation, scale), ROWS[relation], replace=False)) + 1


def _reference(chance: np.random.Generator, relation: str, scale: float, count: int) -> _Integers:
    """Draw keys of a relation whose keys begin at 1."""
    return chance.integers(1, rows(relation, scale) + 1, count)


def _money(chance: np.random.Generator, lowest: float, highest: float, count: int) -> pa.Array:
    return pa.array(np.round(chance.uniform(lowest, highest, count), 2))


def _words(words: Sequence[str], numbers: _Integers) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(numbers))


def _drawn(chance: np.random.Generator, words: Sequence[str], count: int) -> pa.Array:
    return _words(words, chance.integers(0, len(words), count))


def _int(values: _Integers) -> pa.Array:
    return pa.array(values.astype(np.int32))


def _supplier_of(part: _Integers, which: _Integers, scale: float) -> _Integers:
    """Return the key of the supplier 0, 1, 2 or 3 of each part; the four differ, and all suppliers have equally many."""
    suppliers = rows("supplier", scale)
    return (part - 1 + (part - 1) // suppliers + which * (suppliers // _SUPPLIERS)) % suppliers + 1


def _retail_cents(part: _Integers) -> _Integers:
    return 90_000 + part // 10 % 20_001 + 100 * (part % 1_000)


def _ordered(order: _Integers) -> _Integers:
    """Return the day of each order, by its key alone: lines and orders of any seeds agree about it."""
    return (order * 2_654_435_761 % (1 << 32)) * _DAYS >> 32


def _region(_: np.random.Generator, scale: float) -> _Columns:
    del scale
    return {"r_regionkey": _int(np.arange(len(_REGIONS))), "r_name": pa.array(_REGIONS)}


def _nation(_: np.random.Generator, scale: float) -> _Columns:
    del scale
    names, regions = zip(*_NATIONS, strict=True)
    return {"n_nationkey": _int(np.arange(len(names))), "n_name": pa.array(names), "n_regionkey": _int(np.array(regions))}


def _supplier(chance: np.random.Generator, scale: float) -> _Columns:
    key = _keys(chance, "supplier", scale)
    nation = chance.integers(0, len(_NATIONS), len(key))
    return {"s_suppkey": _int(key), "s_nationkey": _int(nation), "s_acctbal": _money(chance, -999.99, 9999.99, len(key))}


def _part(chance: np.random.Generator, scale: float) -> _Columns:
    key = _keys(chance, "part", scale)
    return {
        "p_partkey": _int(key),
        "p_brand": _drawn(chance, _BRANDS, len(key)),
        "p_size": _int(chance.integers(1, _SIZES + 1, len(key))),
        "p_retailprice": pa.array(_retail_cents(key) / 100),
    }


def _partsupp(chance: np.random.Generator, scale: float) -> _Columns:
    part = np.repeat(_keys(chance, "part", scale), _SUPPLIERS)
    which = np.arange(len(part)) % _SUPPLIERS
    return {
        "ps_partkey": _int(part),
        "ps_suppkey": _int(_supplier_of(part, which, scale)),
        "ps_availqty": _int(chance.integers(1, 10_000, len(part))),
        "ps_supplycost": _money(chance, 1, 1000, len(part)),
    }


def _customer(chance: np.random.Generator, scale: float) -> _Columns:
    key = _keys(chance, "customer", scale)
    return {
        "c_custkey": _int(key),
        "c_nationkey": _int(chance.integers(0, len(_NATIONS), len(key))),
        "c_acctbal": _money(chance, -999.99, 9999.99, len(key)),
        "c_mktsegment": _drawn(chance, _SEGMENTS, len(key)),
    }


def _orders(chance: np.random.Generator, scale: float) -> _Columns:
    key = _keys(chance, "orders", scale)
    day = _ordered(key)
    shipped, begun = day + _SHIPPED_WITHIN <= _TODAY, day < _TODAY
    return {
        "o_orderkey": _int(key),
        "o_custkey": _int(_reference(chance, "customer", scale, len(key))),
        "o_orderstatus": _words(("F", "P", "O"), 2 - shipped.astype(np.int64) - begun),
        "o_totalprice": _money(chance, 900, 450_000, len(key)),
        "o_orderdate": _int(_FIRST_DAY + day),
        "o_orderpriority": _drawn(chance, _PRIORITIES, len(key)),
    }


def _lineitem(chance: np.random.Generator, scale: float) -> _Columns:
    orders = _keys(chance, "orders", scale)
    lines = chance.integers(1, _MOST_LINES + 1, len(orders))
    order = np.repeat(orders, lines)
    count = len(order)
    part = _reference(chance, "part", scale, count)
    quantity = chance.integers(1, _SIZES + 1, count)
    shipped = _ordered(order) + chance.integers(1, _SHIPPED_WITHIN + 1, count)
    still_open = shipped > _TODAY
    return {
        "l_orderkey": _int(order),
        "l_partkey": _int(part),
        "l_suppkey": _int(_supplier_of(part, chance.integers(0, _SUPPLIERS, count), scale)),
        "l_linenumber": _int(np.arange(count) - np.repeat(np.cumsum(lines) - lines, lines) + 1),
        "l_quantity": _int(quantity),
        "l_extendedprice": pa.array(quantity * _retail_cents(part) / 100),
        "l_discount": pa.array(chance.integers(0, 11, count) / 100),
        "l_returnflag": _words(("A", "R", "N"), np.where(still_open, 2, chance.integers(0, 2, count))),
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
