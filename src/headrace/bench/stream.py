"""What a benchmark stream consists of: which rows, which keys, how many partitions – but not how fast, nor when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.bench import chain, nexmark, tpch
from headrace.bench.distribution import DISTRIBUTIONS
from headrace.connectors import GENERATORS
from headrace.errors import HeadraceError
from headrace.model.schema import Schema

SCHEMAS: Mapping[str, Schema] = {
    **{name: made.schema for name, made in GENERATORS.items()},
    **nexmark.SCHEMAS,
    **tpch.SCHEMAS,
    **chain.SCHEMAS,
}
KEYED: Mapping[str, tuple[str, ...]] = {  # the columns that may be the key; the first one is, unless another is named
    "fields": ("key",),
    "purchases": ("gem_pack", "user_id"),
    "ads": ("gem_pack", "user_id", "ad_id"),
    "chain": (chain.KEY,),
}


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream that the driver makes up.

    `distribution` over `keys` values applies to the column `key` (fields: key; purchases and ads: gem_pack, or user_id to
    join on, or ad_id); the other columns are as `headrace.connectors.generate` makes them. Nexmark's streams have their own
    proportions and hot keys, and take none. `share` is the stream's part of the total rate, as a weight among all streams.
    Event times lie up to `disorder` seconds before the moment a row is born; `watermark` is what engines are told to allow.
    `pool_rows` is how many different rows there are before they come again (with new times).

    With `match_every` keys do not come again: one row in so many has a key that only the row of the same number has in other
    streams, the others have keys of their own (streams of odd and even seed differ). So as many rows match at any rate.

    The relations of TPC-H have the keys of their `scale` factor, and take nothing else. Of a chain, `keys` is about all
    columns that it is joined by, which are uniform.
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
    scale: float = tpch.SCALE

    def __post_init__(self) -> None:
        """Refuse what no stream could be made from."""
        self._check(bool(self.name.strip()), "has no name")
        self._one_of("generator", SCHEMAS)
        self._one_of("distribution", DISTRIBUTIONS)
        for name in ("keys", "field_max", "partitions", "pool_rows"):
            self._check(0 < getattr(self, name) < 1 << 31, f"has {name} = {getattr(self, name)}, but it must be positive")
        for name in ("disorder", "watermark"):
            self._check(0 <= getattr(self, name) < 1800, f"has {name} = {getattr(self, name)}, but it must be 0 … 1800 seconds")
        self._check(0 <= self.match_every < 1 << 31, f"has match_every = {self.match_every}, but it must not be negative")
        self._check(
            not self.match_every or self.keys < 1 << 30, f"has match_every, and keys = {self.keys}, of which it takes twice"
        )
        self._check(self.share > 0, f"has share = {self.share}, but it must be positive")
        self._check_keys()

    def _check_keys(self) -> None:
        """Refuse what the generator cannot do with its keys."""
        self._check(
            tpch.SMALLEST <= self.scale <= tpch.LARGEST,
            f"has scale = {self.scale}, but it must be {tpch.SMALLEST} … {tpch.LARGEST}",
        )
        self._check(self.scale == tpch.SCALE or self.generator in tpch.SCHEMAS, f"is of '{self.generator}', which has no scale")
        self._check(not self.match_every or self.generator in GENERATORS, f"is of '{self.generator}', which has no match_every")
        self._check(
            self.distribution == "uniform" or self.generator not in chain.SCHEMAS,
            f"is of '{self.generator}', whose keys are uniform",
        )
        if self.generator in KEYED and self.key:
            self._one_of("key", KEYED[self.generator])
        elif self.generator not in KEYED:
            plain = self.distribution == "uniform" and not self.key
            self._check(plain, f"is of '{self.generator}', whose keys cannot be chosen")

    def _one_of(self, name: str, known: Any) -> None:
        if getattr(self, name) not in known:
            raise HeadraceError(
                f"stream '{self.name}' has unknown {name} '{getattr(self, name)}'", detail=f"known: {', '.join(known)}"
            )

    def _check(self, good: bool, problem: str) -> None:
        if not good:
            raise HeadraceError(f"stream '{self.name}' {problem}")

    @property
    def schema(self) -> Schema:
        """The columns."""
        return SCHEMAS[self.generator]

    @property
    def time(self) -> str:
        """The event-time column; it is the last one."""
        return "time"

    @property
    def key_column(self) -> str:
        """The column that `distribution` and `keys` are about; none for streams of Nexmark and TPC-H."""
        return self.key or KEYED.get(self.generator, ("",))[0]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads back."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StreamSpec:
        """Rebuild what `to_json` described; what a stream does not have is refused."""
        try:
            return StreamSpec(**value)
        except TypeError as error:
            raise HeadraceError(f"stream {dict(value)!r} is not understood", detail=str(error)) from error
