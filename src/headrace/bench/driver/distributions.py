"""Key distributions: draw the key of every row of a pool at once, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

KeyArray: TypeAlias = npt.NDArray[np.int32]
_KeyDistribution: TypeAlias = Callable[[np.random.Generator, int, int], npt.NDArray[np.integer]]


def _draw_uniform(rng: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    return rng.integers(0, keys, rows, np.int32)


def _draw_round_robin(_: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    return np.arange(rows) % keys


def _draw_normal(rng: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    """Center the keys with a standard deviation of a sixth of the range; clip draws outside the range to its ends."""
    samples = rng.normal(keys / 2, keys / 6, rows)
    return np.clip(np.floor(samples), 0, keys - 1).astype(np.int32)


def _draw_zipf(rng: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    """Draw key k with a probability proportional to 1 / (k + 1)."""
    cumulative = np.cumsum(1.0 / np.arange(1, keys + 1))
    ranks: npt.NDArray[np.int64] = np.searchsorted(cumulative, rng.random(rows) * cumulative[-1], side="right")
    return np.minimum(ranks, keys - 1)


def _draw_single(_: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    del keys
    return np.zeros(rows, np.int32)


DISTRIBUTIONS: Mapping[str, _KeyDistribution] = {
    "uniform": _draw_uniform,
    "round_robin": _draw_round_robin,
    "normal": _draw_normal,
    "zipf": _draw_zipf,
    "single": _draw_single,
}


def draw_keys(distribution: str, seed: int | Sequence[int], rows: int, keys: int) -> KeyArray:
    """Draw the keys of rows 0 … `rows` - 1, each in [0, keys)."""
    return DISTRIBUTIONS[distribution](np.random.default_rng(seed), rows, keys).astype(np.int32)
