"""Streams for linear joins, r1.b = r2.a, r2.b = r3.a and so on, with a selectivity for each that the query chooses.

A stream has `a` and `b` three times: two rows are equal in their columns `_mid` with a chance of 1 in `keys`, in `_low` with
half and in `_high` with twice that chance. So one set of streams serves every combination, and queries of different ones at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.bench.distribution import draw
from headrace.model.schema import Schema


@dataclass(frozen=True, slots=True)
class Level:
    """A selectivity: the ending of its columns, and its values for each two of `keys`."""

    ending: str
    values_of_two: int

    def domain(self, keys: int) -> int:
        """Return how many values its columns have."""
        return max(1, keys * self.values_of_two // 2)


LEVELS: Mapping[str, Level] = {"L": Level("low", 4), "M": Level("mid", 2), "H": Level("high", 1)}
KEY = "a_mid"  # of the columns that `keys` is about, the one that stands for all
SCHEMAS: Mapping[str, Schema] = {
    "chain": Schema.parse(
        ", ".join(f"{side}_{level.ending} INT" for side in "ab" for level in LEVELS.values()) + ", value INT, time TIMESTAMP"
    )
}


def columns(seed: int, keys: int, below: int, rows: int) -> dict[str, pa.Array]:
    """Return the columns (but for the time) of so many rows; values are below `below`."""
    domains = {f"{side}_{level.ending}": level.domain(keys) for side in "ab" for level in LEVELS.values()}
    made = {
        name: pa.array(draw("uniform", (seed, number), rows, domain)) for number, (name, domain) in enumerate(domains.items())
    }
    made["value"] = pa.array(np.random.default_rng((seed, len(domains))).integers(0, below, rows, np.int32))
    return made
