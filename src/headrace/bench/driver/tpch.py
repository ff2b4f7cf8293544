"""Streams for multi-way joins: the eight relations of TPC-H, and chains for linear joins.

A TPC-H relation has the keys, foreign keys and proportions of the benchmark and a few other columns. It is generated as a whole,
in random order, and repeats. `ROWS_AT_SCALE_1` has its rows at scale factor 1; region and nation have 5 and 25 rows at any scale.
Above scale 1, a relation is a random sample of its keys with the size of scale 1, so that it fits in memory. Foreign keys are
uniform over the keys they refer to: two rows of different relations match with a probability given by `key_domains`, at any rate
and seed.

Unlike Nexmark's, keys do not advance when a pool repeats: selectivities, and optimizers that use them, depend on the range of a
key; and columns that are not keys of each other, such as c_custkey and n_nationkey, stay comparable. Results therefore grow with
the rate: a window with twice the rows has twice the matches per row. To keep the matches per row at r times the rate, use r
times the scale.

Differences from TPC-H: order keys have no gaps, all customers (not two in three) have orders, the total price is random, dates
are days since 1970, and there are no comments, names or addresses. An order is P while its date leaves open whether its lines
are shipped.

A chain is for linear joins (r1.b = r2.a, r2.b = r3.a, …) whose selectivity the query chooses. Its stream has each of `a` and `b`
three times: two rows match in their `_mid` columns with probability 1/`keys`, in `_low` with half and in `_high` with twice that
probability. One set of streams thus serves every combination of selectivities at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.driver.distributions import draw_keys
from headrace.model.types import Schema

DEFAULT_SCALE = 0.01
MIN_SCALE, MAX_SCALE = 0.001, 100.0  # ten suppliers; keys that fit an INT
ROWS_AT_SCALE_1: Mapping[str, int] = {  # at scale factor 1
    "region": 5, "nation": 25, "supplier": 10_000, "part": 200_000, "partsupp": 800_000, "customer": 150_000,
    "orders": 1_500_000, "lineitem": 6_000_000,
}  # fmt: skip
RATE_SHARES: Mapping[str, float] = {  # rows in thousands; region and nation are slow, but not idle
    **{name: rows / 1000 for name, rows in ROWS_AT_SCALE_1.items()},
    "nation": 1.0,
    "region": 0.5,
}
TPCH_SCHEMAS: Mapping[str, Schema] = {
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
_SUPPLIERS_PER_PART, _MAX_LINES_PER_ORDER, _SIZE_COUNT = (
    4,
    7,
    50,
)  # suppliers of a part, lines of an order, sizes of parts and quantities of lines
_FIRST_DAY, _ORDER_DAYS, _CURRENT_DAY, _MAX_SHIP_DAYS = (
    8_035,
    2_406,
    1_263,
    121,
)  # 1992-01-01; lines shipped after _CURRENT_DAY are open
SAME_STATUS_SHARE = 1 - (_MAX_SHIP_DAYS - 1) / _ORDER_DAYS  # share of lines with the status of their order

_Integers: TypeAlias = npt.NDArray[np.int64]
_Columns: TypeAlias = dict[str, pa.Array]


def count_rows(relation: str, scale: float) -> int:
    """Return the number of rows of a relation; for lineitem the mean, because an order has one to seven lines."""
    return ROWS_AT_SCALE_1[relation] if relation in {"region", "nation"} else round(ROWS_AT_SCALE_1[relation] * scale)


def key_domains(scale: float) -> Mapping[str, range]:
    """Return the values of every join column; all values of a column are equally frequent."""
    nations, regions, sizes = range(len(_NATIONS)), range(len(_REGIONS)), range(1, _SIZE_COUNT + 1)
    suppliers, parts, customers, orders = (
        range(1, count_rows(name, scale) + 1) for name in ("supplier", "part", "customer", "orders")
    )
    return {
        "r_regionkey": regions, "n_regionkey": regions, "n_nationkey": nations, "s_nationkey": nations, "c_nationkey": nations,
        "s_suppkey": suppliers, "ps_suppkey": suppliers, "l_suppkey": suppliers, "p_partkey": parts, "ps_partkey": parts,
        "l_partkey": parts, "c_custkey": customers, "o_custkey": customers, "o_orderkey": orders, "l_orderkey": orders,
        "p_size": sizes, "l_quantity": sizes,
    }  # fmt: skip


def generate_relation(relation: str, seed: int, scale: float) -> _Columns:
    """Generate the columns, without the time, of a relation in random row order."""
    rng = np.random.default_rng([seed, list(ROWS_AT_SCALE_1).index(relation)])
    arrays = _RELATION_MAKERS[relation](rng, scale)
    order = pa.array(rng.permutation(len(next(iter(arrays.values())))))
    return {name: column.take(order) for name, column in arrays.items()}


def _draw_keys(rng: np.random.Generator, relation: str, scale: float) -> _Integers:
    """Return the keys of a relation: all of them, or above scale 1 a sample with the size of scale 1."""
    if scale <= 1:
        return np.arange(1, count_rows(relation, scale) + 1)
    return np.sort(rng.choice(count_rows(relation, scale), ROWS_AT_SCALE_1[relation], replace=False)) + 1


def _draw_references(rng: np.random.Generator, relation: str, scale: float, count: int) -> _Integers:
    """Draw foreign keys to a relation whose keys start at 1."""
    return rng.integers(1, count_rows(relation, scale) + 1, count)


def _draw_amounts(rng: np.random.Generator, lowest: float, highest: float, count: int) -> pa.Array:
    return pa.array(np.round(rng.uniform(lowest, highest, count), 2))


def _take_words(words: Sequence[str], indexes: _Integers) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(indexes))


def _draw_words(rng: np.random.Generator, words: Sequence[str], count: int) -> pa.Array:
    return _take_words(words, rng.integers(0, len(words), count))


def _to_int32(values: _Integers) -> pa.Array:
    return pa.array(values.astype(np.int32))


def _supplier_of(part: _Integers, number: _Integers, scale: float) -> _Integers:
    """Return the key of supplier number 0 … 3 of each part; the four differ, and all suppliers have equally many parts."""
    suppliers = count_rows("supplier", scale)
    return (part - 1 + (part - 1) // suppliers + number * (suppliers // _SUPPLIERS_PER_PART)) % suppliers + 1


def _retail_cents(part: _Integers) -> _Integers:
    return 90_000 + part // 10 % 20_001 + 100 * (part % 1_000)


def _order_day(order: _Integers) -> _Integers:
    """Return the day of each order, derived from its key alone, so that lines and orders of all seeds agree."""
    return (order * 2_654_435_761 % (1 << 32)) * _ORDER_DAYS >> 32


def _make_region(_: np.random.Generator, scale: float) -> _Columns:
    del scale
    return {"r_regionkey": _to_int32(np.arange(len(_REGIONS))), "r_name": pa.array(_REGIONS)}


def _make_nation(_: np.random.Generator, scale: float) -> _Columns:
    del scale
    names, regions = zip(*_NATIONS, strict=True)
    return {
        "n_nationkey": _to_int32(np.arange(len(names))),
        "n_name": pa.array(names),
        "n_regionkey": _to_int32(np.array(regions)),
    }


def _make_supplier(rng: np.random.Generator, scale: float) -> _Columns:
    key = _draw_keys(rng, "supplier", scale)
    nation = rng.integers(0, len(_NATIONS), len(key))
    return {
        "s_suppkey": _to_int32(key),
        "s_nationkey": _to_int32(nation),
        "s_acctbal": _draw_amounts(rng, -999.99, 9999.99, len(key)),
    }


def _make_part(rng: np.random.Generator, scale: float) -> _Columns:
    key = _draw_keys(rng, "part", scale)
    return {
        "p_partkey": _to_int32(key),
        "p_brand": _draw_words(rng, _BRANDS, len(key)),
        "p_size": _to_int32(rng.integers(1, _SIZE_COUNT + 1, len(key))),
        "p_retailprice": pa.array(_retail_cents(key) / 100),
    }


def _make_partsupp(rng: np.random.Generator, scale: float) -> _Columns:
    part = np.repeat(_draw_keys(rng, "part", scale), _SUPPLIERS_PER_PART)
    number = np.arange(len(part)) % _SUPPLIERS_PER_PART
    return {
        "ps_partkey": _to_int32(part),
        "ps_suppkey": _to_int32(_supplier_of(part, number, scale)),
        "ps_availqty": _to_int32(rng.integers(1, 10_000, len(part))),
        "ps_supplycost": _draw_amounts(rng, 1, 1000, len(part)),
    }


def _make_customer(rng: np.random.Generator, scale: float) -> _Columns:
    key = _draw_keys(rng, "customer", scale)
    return {
        "c_custkey": _to_int32(key),
        "c_nationkey": _to_int32(rng.integers(0, len(_NATIONS), len(key))),
        "c_acctbal": _draw_amounts(rng, -999.99, 9999.99, len(key)),
        "c_mktsegment": _draw_words(rng, _SEGMENTS, len(key)),
    }


def _make_orders(rng: np.random.Generator, scale: float) -> _Columns:
    key = _draw_keys(rng, "orders", scale)
    day = _order_day(key)
    shipped, started = day + _MAX_SHIP_DAYS <= _CURRENT_DAY, day < _CURRENT_DAY
    return {
        "o_orderkey": _to_int32(key),
        "o_custkey": _to_int32(_draw_references(rng, "customer", scale, len(key))),
        "o_orderstatus": _take_words(("F", "P", "O"), 2 - shipped.astype(np.int64) - started),
        "o_totalprice": _draw_amounts(rng, 900, 450_000, len(key)),
        "o_orderdate": _to_int32(_FIRST_DAY + day),
        "o_orderpriority": _draw_words(rng, _PRIORITIES, len(key)),
    }


def _make_lineitem(rng: np.random.Generator, scale: float) -> _Columns:
    orders = _draw_keys(rng, "orders", scale)
    lines = rng.integers(1, _MAX_LINES_PER_ORDER + 1, len(orders))
    order = np.repeat(orders, lines)
    count = len(order)
    part = _draw_references(rng, "part", scale, count)
    quantity = rng.integers(1, _SIZE_COUNT + 1, count)
    shipped = _order_day(order) + rng.integers(1, _MAX_SHIP_DAYS + 1, count)
    still_open = shipped > _CURRENT_DAY
    return {
        "l_orderkey": _to_int32(order),
        "l_partkey": _to_int32(part),
        "l_suppkey": _to_int32(_supplier_of(part, rng.integers(0, _SUPPLIERS_PER_PART, count), scale)),
        "l_linenumber": _to_int32(np.arange(count) - np.repeat(np.cumsum(lines) - lines, lines) + 1),
        "l_quantity": _to_int32(quantity),
        "l_extendedprice": pa.array(quantity * _retail_cents(part) / 100),
        "l_discount": pa.array(rng.integers(0, 11, count) / 100),
        "l_returnflag": _take_words(("A", "R", "N"), np.where(still_open, 2, rng.integers(0, 2, count))),
        "l_linestatus": _take_words(("F", "O"), still_open.astype(np.int64)),
        "l_shipdate": _to_int32(_FIRST_DAY + shipped),
    }


_RELATION_MAKERS: Mapping[str, Callable[[np.random.Generator, float], _Columns]] = {
    "region": _make_region,
    "nation": _make_nation,
    "supplier": _make_supplier,
    "part": _make_part,
    "partsupp": _make_partsupp,
    "customer": _make_customer,
    "orders": _make_orders,
    "lineitem": _make_lineitem,
}


@dataclass(frozen=True, slots=True)
class SelectivityLevel:
    """A join selectivity: the suffix of its columns, and the number of their values for every two of `keys`."""

    suffix: str
    values_per_two_keys: int

    def domain_size(self, keys: int) -> int:
        """Return the number of distinct values of its columns."""
        return max(1, keys * self.values_per_two_keys // 2)


SELECTIVITY_LEVELS: Mapping[str, SelectivityLevel] = {
    "L": SelectivityLevel("low", 4),
    "M": SelectivityLevel("mid", 2),
    "H": SelectivityLevel("high", 1),
}
CHAIN_KEY = "a_mid"  # represents all columns that `keys` applies to
CHAIN_SCHEMAS: Mapping[str, Schema] = {
    "chain": Schema.parse(
        ", ".join(f"{side}_{level.suffix} INT" for side in "ab" for level in SELECTIVITY_LEVELS.values())
        + ", value INT, time TIMESTAMP"
    )
}


def generate_chain(seed: int, keys: int, below: int, rows: int) -> dict[str, pa.Array]:
    """Generate the columns, without the time, of `rows` rows; `value` is below `below`."""
    domains = {f"{side}_{level.suffix}": level.domain_size(keys) for side in "ab" for level in SELECTIVITY_LEVELS.values()}
    arrays = {
        name: pa.array(draw_keys("uniform", (seed, number), rows, domain))
        for number, (name, domain) in enumerate(domains.items())
    }
    arrays["value"] = pa.array(np.random.default_rng((seed, len(domains))).integers(0, below, rows, np.int32))
    return arrays
