"""The composite streaming source: one for all streams of a session, carrying ranges instead of rows.

Its offset is a JSON map: the micro-batch, and for each stream the position after it. Which ranges belong to a micro-batch
was decided and logged by the coordinator; Spark plans this source in a process of its own, so the decision reaches it by
files: the log entry, and the small file that says which batch may run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

NAME = "headrace_ranges"
_PUBLISHED = "published.json"


def publish(folder: Path, batch: int, positions: dict[str, Any], tasks: Sequence[Sequence[Any]]) -> None:
    """Let Spark run a batch: its tasks first, then the offset that makes Spark look for them."""
    _put(folder / f"{batch}.tasks", tasks)
    _put(folder / _PUBLISHED, {"batch": batch, "streams": positions})


def _put(path: Path, value: object) -> None:
    """Put a file in place whole; it need not survive the machine, so nothing is synced."""
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(value))
    scratch.replace(path)


class RangeTask(InputPartition):
    """One task: the ranges that one worker reads."""

    def __init__(self, number: int, ranges: str) -> None:
        """`ranges` is JSON."""
        self.number, self.ranges = number, ranges


class RangeReader(DataSourceStreamReader):
    """Runs in Spark's planner process."""

    def __init__(self, folder: str) -> None:
        """`folder` is where `publish` writes."""
        self._folder = Path(folder)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Start before any batch."""
        return {"batch": -1, "streams": {}}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the batch that may run; the same as `start` when none does."""
        del limit
        published = self._folder / _PUBLISHED
        found: dict[str, Any] = json.loads(published.read_bytes()) if published.exists() else start
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch."""
        if start["batch"] == end["batch"]:
            return []
        tasks = json.loads((self._folder / f"{end['batch']}.tasks").read_bytes())
        return [RangeTask(number, json.dumps(ranges)) for number, ranges in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        """Pass the ranges on; the next operator reads them."""
        assert isinstance(partition, RangeTask)
        yield partition.number, partition.ranges

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the tasks of batches that are done."""
        for path in self._folder.glob("*.tasks"):
            if int(path.stem) < end["batch"]:
                path.unlink(missing_ok=True)


class RangeSource(DataSource):
    """Registered with Spark once a session; `folder` is its only option."""

    @classmethod
    def name(cls) -> str:
        """Return the name it is registered under."""
        return NAME

    def schema(self) -> str:
        """One row a task."""
        return "task int, ranges string"

    def streamReader(self, schema: Any) -> RangeReader:  # noqa: N802  Spark's name
        """Return the reader."""
        del schema
        return RangeReader(self.options["folder"])
