"""How often each key comes: key of row i, for all rows of a pool at once, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Keys: TypeAlias = npt.NDArray[np.int32]
_Draw: TypeAlias = Callable[[np.random.Generator, int, int], npt.NDArray[np.integer]]


def _uniform(chance: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    return chance.integers(0, keys, rows, np.int32)


def _round_robin(_: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    return np.arange(rows) % keys


def _normal(chance: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    """All keys lie within three deviations of the middle; what is drawn beyond is drawn to the rim."""
    drawn = chance.normal(keys / 2, keys / 6, rows)
    return np.clip(np.floor(drawn), 0, keys - 1).astype(np.int32)


def _zipf(chance: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    """Key k comes in proportion to 1 / (k + 1)."""
    weight = np.cumsum(1.0 / np.arange(1, keys + 1))
    found: npt.NDArray[np.int64] = np.searchsorted(weight, chance.random(rows) * weight[-1], side="right")
    return np.minimum(found, keys - 1)


def _single(_: np.random.Generator, rows: int, keys: int) -> npt.NDArray[np.integer]:
    del keys
    return np.zeros(rows, np.int32)


DISTRIBUTIONS: Mapping[str, _Draw] = {
    "uniform": _uniform,
    "round_robin": _round_robin,
    "normal": _normal,
    "zipf": _zipf,
    "single": _single,
}


def draw(distribution: str, seed: int | Sequence[int], rows: int, keys: int) -> Keys:
    """Return the keys of rows 0 … `rows` - 1, each in [0, keys)."""
    return DISTRIBUTIONS[distribution](np.random.default_rng(seed), rows, keys).astype(np.int32)
