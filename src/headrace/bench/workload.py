"""The AStream workload: random integer rows, and aggregation queries with a random predicate and a random window.

Rows have a key and five fields; a query sums one field by key where a random field compares with a random constant, in
windows of 1–10 s. Everything follows from a seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors import generate

KEYS = 1_000
FIELD_MAX = 1_000
ROWS_PER_SECOND = 1_000_000  # of event time: a ten-second window holds ten million rows
_OPERATORS = ("<", ">", "=", "<=", ">=")


@dataclass(frozen=True, slots=True)
class FieldQuery:
    """One query of the workload, spelled for headrace and for plain Spark."""

    predicate: str
    size: int
    slide: int

    def headrace(self, stream: str) -> str:
        """Return the text headrace takes."""
        return (
            f"SELECT window_start, window_end, key, SUM(f1) AS total FROM HOP({stream}, '{self.size} seconds', "
            f"'{self.slide} seconds') WHERE {self.predicate} GROUP BY key"
        )

    def spark(self, table: str) -> str:
        """Return the same for plain Spark SQL."""
        return (
            f"SELECT window(time, '{self.size} seconds', '{self.slide} seconds') AS w, key, SUM(f1) AS total FROM {table} "
            f"WHERE {self.predicate} GROUP BY window(time, '{self.size} seconds', '{self.slide} seconds'), key"
        )


def field_queries(count: int, seed: int = 7) -> list[FieldQuery]:
    """Return the first `count` queries of the seed: the same first ones for any count."""
    chance = random.Random(seed)  # noqa: S311  a workload, not a secret
    found = []
    for _ in range(count):
        field, operator, constant = chance.randint(1, 5), chance.choice(_OPERATORS), chance.randrange(FIELD_MAX)
        size = chance.randint(1, 10)
        found.append(FieldQuery(f"f{field} {operator} {constant}", size, chance.randint(1, size)))
    return found


def write_files(folder: Path, first: int, rows: int, rows_per_file: int, *, parquet: bool) -> list[Path]:
    """Write rows from number `first` on as Arrow files, or as Parquet for engines that cannot read Arrow."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    last = first + rows
    for number, start in enumerate(range(first, last, rows_per_file)):
        stop = min(start + rows_per_file, last)
        table = generate("fields", 0, start, stop, rows_per_second=ROWS_PER_SECOND, keys=KEYS, field_max=FIELD_MAX)
        path = folder / f"{number:05d}.{'parquet' if parquet else 'arrow'}"
        if parquet:
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 20)
        written.append(path)
    return written
