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

from headrace.model.types import Schema

POOL_ROUNDS = 20_160  # divisible by any number of partitions up to 10
ROWS_PER_ROUND: Mapping[str, int] = {"persons": 1, "auctions": 3, "bids": 46}
HOT_AUCTION_RATIO, HOT_SELLER_RATIO, HOT_BIDDER_RATIO = 2, 4, 4
FIRST_NUMBER = 1_000  # so that "recent" numbers exist from the first event on

_HOT_INTERVAL, _RECENT_AUCTIONS, _RECENT_PERSONS, _NUMBERS_AHEAD = 100, 100, 1_000, 10
_CATEGORY_COUNT, _FIRST_CATEGORY = 5, 10
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Tucson", "Oakland", "Fresno", "Nampa", "Salem", "Eugene", "Tacoma", "Spokane", "Laramie", "Casper")
_NAMES = ("Ada", "Bela", "Clara", "Dora", "Emil", "Frida", "Greta", "Hugo", "Ida", "Jonas", "Karla", "Leo")
_CHANNELS = ("app", "web", "mail", "shop")
_OTHER_CHANNEL_COUNT = 10_000

_Integers: TypeAlias = npt.NDArray[np.int64]
_Columns: TypeAlias = dict[str, pa.Array]

NEXMARK_SCHEMAS: Mapping[str, Schema] = {
    "persons": Schema.parse("id BIGINT, name STRING, city STRING, state STRING, time TIMESTAMP"),
    "auctions": Schema.parse("id BIGINT, category INT, initial_bid BIGINT, reserve BIGINT, seller BIGINT, time TIMESTAMP"),
    "bids": Schema.parse("auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, time TIMESTAMP"),
}
ADVANCING_COLUMNS: Mapping[str, Mapping[str, str]] = {  # column → entity whose numbers it holds
    "persons": {"id": "persons"},
    "auctions": {"id": "auctions", "seller": "persons"},
    "bids": {"auction": "auctions", "bidder": "persons"},
}


def count_rounds(partitions: int) -> int:
    """Return the number of rounds of a pool: POOL_ROUNDS, rounded up to a multiple of the partitions."""
    return -(-POOL_ROUNDS // partitions) * partitions


def generate_events(stream: str, seed: int, count: int) -> _Columns:
    """Generate the columns, without the time, of `count` rounds."""
    rng = np.random.default_rng([seed, list(ROWS_PER_ROUND).index(stream)])
    rows_per_round = ROWS_PER_ROUND[stream]
    return _EVENT_MAKERS[stream](rng, np.arange(count * rows_per_round) // rows_per_round)


def _mix_hot_numbers(rng: np.random.Generator, latest: _Integers, ratio: int, drawn: _Integers, offset: int = 0) -> _Integers:
    """Give all but one in `ratio` rows, on average, the hot number, and the others their drawn number."""
    return np.where(rng.integers(0, ratio, len(latest)) > 0, latest // _HOT_INTERVAL * _HOT_INTERVAL + offset, drawn)


def _draw_recent(rng: np.random.Generator, latest: _Integers, window: int) -> _Integers:
    return latest - window + 1 + rng.integers(0, window + _NUMBERS_AHEAD, len(latest))


def _draw_prices(rng: np.random.Generator, rows: int) -> _Integers:
    """Draw prices in cents, from one to a million dollars, uniform on a logarithmic scale."""
    return np.rint(10.0 ** (rng.random(rows) * 6 + 2)).astype(np.int64)


def _draw_words(rng: np.random.Generator, words: Any, rows: int) -> pa.Array:
    return pa.array(words).take(pa.array(rng.integers(0, len(words), rows)))


def _make_persons(rng: np.random.Generator, number: _Integers) -> _Columns:
    rows = len(number)
    return {
        "id": pa.array(FIRST_NUMBER + number),
        "name": _draw_words(rng, _NAMES, rows),
        "city": _draw_words(rng, _CITIES, rows),
        "state": _draw_words(rng, _STATES, rows),
    }


def _make_auctions(rng: np.random.Generator, in_round: _Integers) -> _Columns:
    rows, latest = len(in_round), FIRST_NUMBER + in_round
    opening = _draw_prices(rng, rows)
    return {
        "id": pa.array(FIRST_NUMBER + np.arange(rows)),
        "category": pa.array(_FIRST_CATEGORY + rng.integers(0, _CATEGORY_COUNT, rows, np.int32)),
        "initial_bid": pa.array(opening),
        "reserve": pa.array(opening + _draw_prices(rng, rows)),
        "seller": pa.array(_mix_hot_numbers(rng, latest, HOT_SELLER_RATIO, _draw_recent(rng, latest, _RECENT_PERSONS))),
    }


def _make_bids(rng: np.random.Generator, in_round: _Integers) -> _Columns:
    rows, person = len(in_round), FIRST_NUMBER + in_round
    auction = FIRST_NUMBER + ROWS_PER_ROUND["auctions"] * (in_round + 1) - 1
    other_channels = [f"channel-{number}" for number in range(_OTHER_CHANNEL_COUNT)]
    channel = np.where(rng.integers(0, 2, rows) > 0, rng.integers(0, 4, rows), 4 + rng.integers(0, _OTHER_CHANNEL_COUNT, rows))
    return {
        "auction": pa.array(_mix_hot_numbers(rng, auction, HOT_AUCTION_RATIO, _draw_recent(rng, auction, _RECENT_AUCTIONS))),
        "bidder": pa.array(_mix_hot_numbers(rng, person, HOT_BIDDER_RATIO, _draw_recent(rng, person, _RECENT_PERSONS), 1)),
        "price": pa.array(_draw_prices(rng, rows)),
        "channel": pa.array([*_CHANNELS, *other_channels]).take(pa.array(channel)),
    }


_EVENT_MAKERS: Mapping[str, Callable[[np.random.Generator, _Integers], _Columns]] = {
    "persons": _make_persons,
    "auctions": _make_auctions,
    "bids": _make_bids,
}
