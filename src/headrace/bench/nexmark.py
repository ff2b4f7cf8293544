"""The auction site of Nexmark: of 50 events one is a new person, three are new auctions, 46 are bids.

As in the public generator, half of all bids (hot ratio 2) go to a hot auction, three quarters (hot ratio 4) come from a hot
bidder, and three quarters of all auctions are by a hot seller; hot is the latest one whose number is a multiple of 100. The
others are drawn from the last 100 auctions or the last 1,000 persons, and a few that are still to come. Ours are the
columns kept: no descriptions, no credit cards, no filler.

Numbers go up without end. A pool holds ROUNDS rounds of 50 events and is used over and over; each time around, the columns
of `ADVANCING` go on by what the pool has of persons or auctions, so a number does not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.schema import Schema

ROUNDS = 20_160  # divides evenly among any number of partitions up to 10
PROPORTIONS: Mapping[str, int] = {"persons": 1, "auctions": 3, "bids": 46}
HOT_AUCTION, HOT_SELLER, HOT_BIDDER = 2, 4, 4
FIRST = 1_000  # so that what is "recent" at the very beginning is a number, too

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
ADVANCING: Mapping[str, Mapping[str, str]] = {  # column → whose numbers they are
    "persons": {"id": "persons"},
    "auctions": {"id": "auctions", "seller": "persons"},
    "bids": {"auction": "auctions", "bidder": "persons"},
}


def rounds(partitions: int) -> int:
    """Return how many rounds a pool has: ROUNDS, or a few more so that partitions get equal parts."""
    return -(-ROUNDS // partitions) * partitions


def columns(stream: str, seed: int, count: int) -> _Columns:
    """Return the columns (but for the time) of `count` rounds."""
    chance = np.random.default_rng([seed, list(PROPORTIONS).index(stream)])
    each = PROPORTIONS[stream]
    return _MAKERS[stream](chance, np.arange(count * each) // each)


def _hot(chance: np.random.Generator, latest: _Integers, ratio: int, drawn: _Integers, beside: int = 0) -> _Integers:
    """Of `ratio` rows all but one, on average, get the hot number; the others what was drawn for them."""
    return np.where(chance.integers(0, ratio, len(latest)) > 0, latest // _HOT_EVERY * _HOT_EVERY + beside, drawn)


def _recent(chance: np.random.Generator, latest: _Integers, how_many: int) -> _Integers:
    return latest - how_many + 1 + chance.integers(0, how_many + _AHEAD, len(latest))


def _price(chance: np.random.Generator, rows: int) -> _Integers:
    """Cents, from one to a million dollars, evenly on a logarithmic scale."""
    return np.rint(10.0 ** (chance.random(rows) * 6 + 2)).astype(np.int64)


def _words(chance: np.random.Generator, words: Any, rows: int) -> pa.Array:
    return pa.array(words).take(pa.array(chance.integers(0, len(words), rows)))


def _persons(chance: np.random.Generator, number: _Integers) -> _Columns:
    rows = len(number)
    return {
        "id": pa.array(FIRST + number),
        "name": _words(chance, _NAMES, rows),
        "city": _words(chance, _CITIES, rows),
        "state": _words(chance, _STATES, rows),
    }


def _auctions(chance: np.random.Generator, in_round: _Integers) -> _Columns:
    rows, latest = len(in_round), FIRST + in_round
    opening = _price(chance, rows)
    return {
        "id": pa.array(FIRST + np.arange(rows)),
        "category": pa.array(_FIRST_CATEGORY + chance.integers(0, _CATEGORIES, rows, np.int32)),
        "initial_bid": pa.array(opening),
        "reserve": pa.array(opening + _price(chance, rows)),
        "seller": pa.array(_hot(chance, latest, HOT_SELLER, _recent(chance, latest, _RECENT_PERSONS))),
    }


def _bids(chance: np.random.Generator, in_round: _Integers) -> _Columns:
    rows, person = len(in_round), FIRST + in_round
    auction = FIRST + PROPORTIONS["auctions"] * (in_round + 1) - 1
    other = [f"channel-{number}" for number in range(_OTHER_CHANNELS)]
    channel = np.where(
        chance.integers(0, 2, rows) > 0, chance.integers(0, 4, rows), 4 + chance.integers(0, _OTHER_CHANNELS, rows)
    )
    return {
        "auction": pa.array(_hot(chance, auction, HOT_AUCTION, _recent(chance, auction, _RECENT_AUCTIONS))),
        "bidder": pa.array(_hot(chance, person, HOT_BIDDER, _recent(chance, person, _RECENT_PERSONS), 1)),
        "price": pa.array(_price(chance, rows)),
        "channel": pa.array([*_CHANNELS, *other]).take(pa.array(channel)),
    }


_MAKERS: Mapping[str, Callable[[np.random.Generator, _Integers], _Columns]] = {
    "persons": _persons,
    "auctions": _auctions,
    "bids": _bids,
}
