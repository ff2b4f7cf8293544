"""The Nexmark auction workload: of 50 events one is a new person, three are new auctions, 46 are bids.

As in the public generator, half of all bids (hot ratio 2) go to a hot auction, three quarters (hot ratio 4) come from a hot
bidder, and three quarters of all auctions have a hot seller; hot is the latest number that is a multiple of 100. The others are
drawn from the last 100 auctions or the last 1,000 persons, and a few numbers ahead. The columns are a subset: no descriptions,
credit cards or filler.

Numbers ascend without end. A pool holds POOL_ROUNDS rounds of 50 events and is reused; with every pass, the columns of
`ADVANCING_COLUMNS` advance by the pool's number of persons or auctions, so that numbers do not repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.schema import Schema

ROUNDS = 20_160  # divisible by any number of partitions up to 10
PROPORTIONS: Mapping[str, int] = {"persons": 1, "auctions": 3, "bids": 46}
HOT_AUCTION, HOT_SELLER, HOT_BIDDER = 2, 4, 4
FIRST = 1_000  # so that "recent" numbers exist from the first event on

_HOT_EVERY, _RECENT_AUCTIONS, _RECENT_PERSONS, _AHEAD = 100, 100, 1_000, 10
_CATEGORIES, _FIRST_CATEGORY = 5, 10
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Tucson", "Oakland", "Fresno", "Nampa", "Salem", "Eugene", "Tacoma", "Spokane", "Laramie", "Casper")
_NAMES = ("Ada", "Bela", "Clara", "Dora", "Emil", "Frida", "Greta", "Hugo", "Ida", "Jonas", "Karla", "Leo")
_CHANNELS = ("app", "web", "mail", "shop")
_OTHER_CHANNELS = 10_000

_Integers: TypeAlias = npt.NDArray[np.int64]
_Columns: TypeAlias = dict[str, pa.Array]

SCHEMAS: Mapping[str, Schema] = {
    "persons": Schema.parse("id BIGINT, name STRING, city STRING, state STRING, time TIMESTAMP"),
    "auctions": Schema.parse("id BIGINT, category INT, initial_bid BIGINT, reserve BIGINT, seller BIGINT, time TIMESTAMP"),
    "bids": Schema.parse("auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, time TIMESTAMP"),
}
ADVANCING: Mapping[str, Mapping[str, str]] = {  # column → entity whose numbers it holds
    "persons": {"id": "persons"},
    "auctions": {"id": "auctions", "seller": "persons"},
    "bids": {"auction": "auctions", "bidder": "persons"},
}


def rounds(partitions: int) -> int:
    """Return the number of rounds of a pool: POOL_ROUNDS, rounded up to a multiple of the partitions."""
    return -(-ROUNDS // partitions) * partitions


def columns(stream: str, seed: int, count: int) -> _Columns:
    """Generate the columns, without the time, of `count` rounds."""
    rng = np.random.default_rng([seed, list(PROPORTIONS).index(stream)])
    rows_per_round = PROPORTIONS[stream]
    return _MAKERS[stream](rng, np.arange(count * rows_per_round) // rows_per_round)


def _hot(rng: np.random.Generator, latest: _Integers, ratio: int, drawn: _Integers, offset: int = 0) -> _Integers:
    """Give all but one in `ratio` rows, on average, the hot number, and the others their drawn number."""
    return np.where(rng.integers(0, ratio, len(latest)) > 0, latest // _HOT_EVERY * _HOT_EVERY + offset, drawn)


def _recent(rng: np.random.Generator, latest: _Integers, window: int) -> _Integers:
    return latest - window + 1 + rng.integers(0, window + _AHEAD, len(latest))


def _price(rng: np.random.Generator, rows: int) -> _Integers:
    """Draw prices in cents, from one to a million dollars, uniform on a logarithmic scale."""
    return np.rint(10.0 ** (rng.random(rows) * 6 + 2)).astype(np.int64)


def _words(rng: np.random.Generator, words: Any, rows: int) -> pa.Array:
    return pa.array(words).take(pa.array(rng.integers(0, len(words), rows)))


def _persons(rng: np.random.Generator, number: _Integers) -> _Columns:
    rows = len(number)
    return {
        "id": pa.array(FIRST + number),
        "name": _words(rng, _NAMES, rows),
        "city": _words(rng, _CITIES, rows),
        "state": _words(rng, _STATES, rows),
    }


def _auctions(rng: np.random.Generator, in_round: _Integers) -> _Columns:
    rows, latest = len(in_round), FIRST + in_round
    opening = _price(rng, rows)
    return {
        "id": pa.array(FIRST + np.arange(rows)),
        "category": pa.array(_FIRST_CATEGORY + rng.integers(0, _CATEGORIES, rows, np.int32)),
        "initial_bid": pa.array(opening),
        "reserve": pa.array(opening + _price(rng, rows)),
        "seller": pa.array(_hot(rng, latest, HOT_SELLER, _recent(rng, latest, _RECENT_PERSONS))),
    }


def _bids(rng: np.random.Generator, in_round: _Integers) -> _Columns:
    rows, person = len(in_round), FIRST + in_round
    auction = FIRST + PROPORTIONS["auctions"] * (in_round + 1) - 1
    other_channels = [f"channel-{number}" for number in range(_OTHER_CHANNELS)]
    channel = np.where(rng.integers(0, 2, rows) > 0, rng.integers(0, 4, rows), 4 + rng.integers(0, _OTHER_CHANNELS, rows))
    return {
        "auction": pa.array(_hot(rng, auction, HOT_AUCTION, _recent(rng, auction, _RECENT_AUCTIONS))),
        "bidder": pa.array(_hot(rng, person, HOT_BIDDER, _recent(rng, person, _RECENT_PERSONS), 1)),
        "price": pa.array(_price(rng, rows)),
        "channel": pa.array([*_CHANNELS, *other_channels]).take(pa.array(channel)),
    }


_MAKERS: Mapping[str, Callable[[np.random.Generator, _Integers], _Columns]] = {
    "persons": _persons,
    "auctions": _auctions,
    "bids": _bids,
}
