"""The specification of a benchmark stream: generator, keys, partitions and disorder, but not its rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.bench.driver import nexmark, tpch
from headrace.bench.driver.distributions import DISTRIBUTIONS
from headrace.connectors import GENERATORS
from headrace.errors import HeadraceError
from headrace.model.types import Schema

STREAM_SCHEMAS: Mapping[str, Schema] = {
    **{name: generator.schema for name, generator in GENERATORS.items()},
    **nexmark.NEXMARK_SCHEMAS,
    **tpch.TPCH_SCHEMAS,
    **tpch.CHAIN_SCHEMAS,
}
KEY_COLUMNS: Mapping[str, tuple[str, ...]] = {  # possible key columns, the default first
    "fields": ("key",),
    "purchases": ("gem_pack", "user_id"),
    "ads": ("gem_pack", "user_id", "ad_id"),
    "chain": (tpch.CHAIN_KEY,),
}


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream that the driver generates.

    `distribution` over `keys` values applies to the column `key` (fields: key; purchases and ads: gem_pack, or user_id to join
    on, or ad_id); `headrace.connectors.rate` makes the other columns. Nexmark's streams have their own proportions and hot
    keys, which are fixed. `share` is the stream's weight in the total rate. Event times lie up to `disorder` seconds before the
    time a row is produced; `watermark` is the delay that engines are configured with. `pool_rows` is the number of different
    rows before they repeat (with new times).

    With `match_every` keys do not repeat: one row in `match_every` has a key that only the row of the same number has in other
    streams; the others have keys of their own (streams of odd and even seed differ). So the number of matches does not depend
    on the rate.

    The relations of TPC-H have the keys of their `scale` factor and no other options. For a chain, `keys` applies to all its join
    columns, which are uniform.
    """

    name: str
    generator: str
    distribution: str = "uniform"
    keys: int = 1000
    share: float = 1.0
    disorder: float = 0.0
    watermark: float = 0.0
    partitions: int = 2
    seed: int = 0
    key: str = ""
    field_max: int = 1000
    pool_rows: int = 1 << 20
    match_every: int = 0
    scale: float = tpch.DEFAULT_SCALE

    def __post_init__(self) -> None:
        """Reject values from which no stream can be generated."""
        self._require(bool(self.name.strip()), "has no name")
        self._require_known("generator", STREAM_SCHEMAS)
        self._require_known("distribution", DISTRIBUTIONS)
        for name in ("keys", "field_max", "partitions", "pool_rows"):
            self._require(0 < getattr(self, name) < 1 << 31, f"has {name} = {getattr(self, name)}, but it must be positive")
        for name in ("disorder", "watermark"):
            self._require(0 <= getattr(self, name) < 1800, f"has {name} = {getattr(self, name)}, but it must be 0 … 1800 seconds")
        self._require(0 <= self.match_every < 1 << 31, f"has match_every = {self.match_every}, but it must not be negative")
        self._require(
            not self.match_every or self.keys < 1 << 30, f"has match_every and keys = {self.keys}, but keys must be below 2^30"
        )
        self._require(self.share > 0, f"has share = {self.share}, but it must be positive")
        self._check_keys()

    def _check_keys(self) -> None:
        """Reject key options that the generator does not have."""
        self._require(
            tpch.MIN_SCALE <= self.scale <= tpch.MAX_SCALE,
            f"has scale = {self.scale}, but it must be {tpch.MIN_SCALE} … {tpch.MAX_SCALE}",
        )
        self._require(
            self.scale == tpch.DEFAULT_SCALE or self.generator in tpch.TPCH_SCHEMAS,
            f"uses generator '{self.generator}', which has no scale",
        )
        self._require(
            not self.match_every or self.generator in GENERATORS, f"uses generator '{self.generator}', which has no match_every"
        )
        self._require(
            self.distribution == "uniform" or self.generator not in tpch.CHAIN_SCHEMAS,
            f"uses generator '{self.generator}', whose keys are uniform",
        )
        if self.generator in KEY_COLUMNS and self.key:
            self._require_known("key", KEY_COLUMNS[self.generator])
        elif self.generator not in KEY_COLUMNS:
            unchanged = self.distribution == "uniform" and not self.key
            self._require(unchanged, f"uses generator '{self.generator}', whose keys are fixed")

    def _require_known(self, name: str, known: Any) -> None:
        if getattr(self, name) not in known:
            raise HeadraceError(
                f"stream '{self.name}' has unknown {name} '{getattr(self, name)}'", detail=f"known: {', '.join(known)}"
            )

    def _require(self, valid: bool, problem: str) -> None:
        if not valid:
            raise HeadraceError(f"stream '{self.name}' {problem}")

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""
        return STREAM_SCHEMAS[self.generator]

    @property
    def time_column(self) -> str:
        """The event-time column, which is the last one."""
        return "time"

    @property
    def key_column(self) -> str:
        """The column that `distribution` and `keys` apply to; empty for streams of Nexmark and TPC-H."""
        return self.key or KEY_COLUMNS.get(self.generator, ("",))[0]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StreamSpec:
        """Read the JSON form of `to_json`; reject unknown fields."""
        try:
            return StreamSpec(**value)
        except TypeError as error:
            raise HeadraceError(f"stream {dict(value)!r} is invalid", detail=str(error)) from error
