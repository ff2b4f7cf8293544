"""The rows of the AStream workload as files: a key and five random fields. `queries.aggregations.Fields` has its queries."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors import generate

WORKLOAD_KEYS = 1_000
FIELD_MAX = 1_000
ROWS_PER_SECOND = 1_000_000  # of event time: a ten-second window holds ten million rows


def write_workload_files(folder: Path, first: int, rows: int, rows_per_file: int, *, parquet: bool) -> list[Path]:
    """Write rows from number `first` on as Arrow files, or as Parquet for engines that do not read Arrow."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    last = first + rows
    for number, start in enumerate(range(first, last, rows_per_file)):
        stop = min(start + rows_per_file, last)
        table = generate("fields", 0, start, stop, rows_per_second=ROWS_PER_SECOND, keys=WORKLOAD_KEYS, field_max=FIELD_MAX)
        path = folder / f"{number:05d}.{'parquet' if parquet else 'arrow'}"
        if parquet:
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 20)
        paths.append(path)
    return paths
