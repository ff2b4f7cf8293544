# ruff: noqa: INP001, S311  a script; its random numbers are not for security
"""Generate the data files of examples/purchases.toml, deterministically, with the irregularities of real streams.

These are disorder of up to two seconds, a few late rows, NULLs, rows without event time, and a user with many purchases.
`python examples/make_data.py` writes examples/data again; the files change only if this script changes.
"""

from __future__ import annotations

import csv
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 60
COUNTRIES = ("DE", "FR", "JP", "US", None)


def main() -> None:
    """Write all files."""
    rng = random.Random(20260101)
    purchases = sort_by_arrival(rng, [make_purchase(rng, time) for time in draw_times(rng, 400)])
    ads = sort_by_arrival(rng, [make_ad(rng, time) for time in draw_times(rng, 200)])
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    for number in range(4):
        write_csv(data / f"purchases-{number + 1}.csv", purchases[number * 100 : number * 100 + 100])
    for number in range(2):
        write_json_lines(data / f"ads-{number + 1}.jsonl", ads[number * 100 : number * 100 + 100])


def draw_times(rng: random.Random, rows: int) -> list[datetime]:
    """Return sorted event times, with a pause from second 40 to 46."""
    offsets = sorted(rng.uniform(0, SECONDS) for _ in range(rows))
    return [START + timedelta(milliseconds=int((s if not 40 <= s < 46 else s - 20) * 1000)) for s in sorted(offsets)]


def make_purchase(rng: random.Random, time: datetime) -> dict[str, Any]:
    """Return a purchase; about a quarter of them are of user 7."""
    return {
        "user_id": 7 if rng.random() < 0.25 else rng.randrange(20),
        "gem_pack": None if rng.random() < 0.03 else rng.randrange(1, 6),
        "price": None if rng.random() < 0.04 else rng.randrange(50, 10_000) / 100,
        "country": rng.choice(COUNTRIES),
        "time": None if rng.random() < 0.01 else time,
    }


def make_ad(rng: random.Random, time: datetime) -> dict[str, Any]:
    """Return an ad."""
    return {
        "ad_id": rng.randrange(1, 9),
        "user_id": rng.randrange(20),
        "gem_pack": rng.randrange(1, 6),
        "cost": None if rng.random() < 0.05 else rng.randrange(1, 500) / 100,
        "time": time,
    }


def sort_by_arrival(rng: random.Random, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by arrival: each is delayed by up to two seconds, a few by twenty."""

    def arrival(row: dict[str, Any]) -> datetime:
        delay = 20.0 if rng.random() < 0.02 else rng.uniform(0, 2)
        return (row["time"] or START) + timedelta(seconds=delay)

    return sorted(rows, key=arrival)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows with a header; NULL is an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([to_text(value) for value in row.values()] for row in rows)


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a JSON object per line."""
    path.write_text(
        "".join(json.dumps({name: to_text(value) for name, value in row.items()}) + "\n" for row in rows), encoding="utf-8"
    )


def to_text(value: Any) -> Any:
    """Return a timestamp as ISO-8601 text, and any other value unchanged."""
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value


if __name__ == "__main__":
    main()
