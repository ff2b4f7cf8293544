"""Streams for linear joins (r1.b = r2.a, r2.b = r3.a, …) whose join selectivity the query chooses.

A stream has each of `a` and `b` three times: two rows match in their `_mid` columns with probability 1/`keys`, in `_low` with
half and in `_high` with twice that probability. One set of streams thus serves every combination of selectivities at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.bench.distribution import draw_keys
from headrace.model.schema import Schema


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
