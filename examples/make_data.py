# ruff: noqa: INP001, S311  a script; its random numbers keep no secrets
"""Make the data files of examples/purchases.toml: always the same, with what real streams have.

Disorder of up to two seconds, a few rows that come much too late, NULLs, rows without event time, a user who does a
lot. Run `python examples/make_data.py` to write examples/data again; nothing changes unless this file does.
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
    draw = random.Random(20260101)
    purchases = in_order_of_arrival(draw, [purchase(draw, time) for time in times(draw, 400)])
    ads = in_order_of_arrival(draw, [ad(draw, time) for time in times(draw, 200)])
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    for number in range(4):
        write_csv(data / f"purchases-{number + 1}.csv", purchases[number * 100 : number * 100 + 100])
    for number in range(2):
        write_json_lines(data / f"ads-{number + 1}.jsonl", ads[number * 100 : number * 100 + 100])


def times(draw: random.Random, rows: int) -> list[datetime]:
    """Return event times in order, with a quiet stretch from second 40 to 46."""
    offsets = sorted(draw.uniform(0, SECONDS) for _ in range(rows))
    return [START + timedelta(milliseconds=int((s if not 40 <= s < 46 else s - 20) * 1000)) for s in sorted(offsets)]


def purchase(draw: random.Random, time: datetime) -> dict[str, Any]:
    """Return a row; every fourth is of user 7."""
    return {
        "user_id": 7 if draw.random() < 0.25 else draw.randrange(20),
        "gem_pack": None if draw.random() < 0.03 else draw.randrange(1, 6),
        "price": None if draw.random() < 0.04 else draw.randrange(50, 10_000) / 100,
        "country": draw.choice(COUNTRIES),
        "time": None if draw.random() < 0.01 else time,
    }


def ad(draw: random.Random, time: datetime) -> dict[str, Any]:
    """Return a row."""
    return {
        "ad_id": draw.randrange(1, 9),
        "user_id": draw.randrange(20),
        "gem_pack": draw.randrange(1, 6),
        "cost": None if draw.random() < 0.05 else draw.randrange(1, 500) / 100,
        "time": time,
    }


def in_order_of_arrival(draw: random.Random, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Delay each row by up to two seconds, a few by twenty."""

    def arrival(row: dict[str, Any]) -> datetime:
        delay = 20.0 if draw.random() < 0.02 else draw.uniform(0, 2)
        return (row["time"] or START) + timedelta(seconds=delay)

    return sorted(rows, key=arrival)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows with a header; NULL is an empty field."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([text(value) for value in row.values()] for row in rows)


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one object a line."""
    path.write_text(
        "".join(json.dumps({name: text(value) for name, value in row.items()}) + "\n" for row in rows), encoding="utf-8"
    )


def text(value: Any) -> Any:
    """Return what a file can hold."""
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value


if __name__ == "__main__":
    main()
