"""Streams for linear joins (r1.b = r2.a, r2.b = r3.a, …) whose join selectivity the query chooses.

A stream has each of `a` and `b` three times: two rows match in their `_mid` columns with probability 1/`keys`, in `_low` with
half and in `_high` with twice that probability. One set of streams thus serves every combination of selectivities at once.
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
    """A join selectivity: the suffix of its columns, and the number of their values for every two of `keys`."""

    ending: str
    values_of_two: int

    def domain(self, keys: int) -> int:
        """Return the number of distinct values of its columns."""
        return max(1, keys * self.values_of_two // 2)


LEVELS: Mapping[str, Level] = {"L": Level("low", 4), "M": Level("mid", 2), "H": Level("high", 1)}
KEY = "a_mid"  # represents all columns that `keys` applies to
SCHEMAS: Mapping[str, Schema] = {
    "chain": Schema.parse(
        ", ".join(f"{side}_{level.ending} INT" for side in "ab" for level in LEVELS.values()) + ", value INT, time TIMESTAMP"
    )
}


def columns(seed: int, keys: int, below: int, rows: int) -> dict[str, pa.Array]:
    """Generate the columns, without the time, of `rows` rows; `value` is below `below`."""
    domains = {f"{side}_{level.ending}": level.domain(keys) for side in "ab" for level in LEVELS.values()}
    arrays = {
        name: pa.array(draw("uniform", (seed, number), rows, domain)) for number, (name, domain) in enumerate(domains.items())
    }
    arrays["value"] = pa.array(np.random.default_rng((seed, len(domains))).integers(0, below, rows, np.int32))
    return arrays
