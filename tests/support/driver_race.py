"""A race of two driver processes for a checkpoint in an object store: one is stopped, the other takes over, the first wakes up.

first    batch batch ▪ SIGSTOP                                   SIGCONT ▪ ends, and says why
second   standby ............... takes over · batch batch ...             batch batch · end

The bucket keeps all versions of its objects, so that the manifest has a history: who committed which batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet

import headrace
import headrace as hr
from headrace.storage import documents
from headrace.storage.checkpoint import read_identity
from headrace.storage.locations import open_store
from headrace.storage.manifests import CURRENT_MANIFEST
from support.racing_driver import FILE_QUERIES, declare, read_rows

RACE_BUCKET = "headrace-races"  # of its own: with versions, a listing of moto has the folders of deleted objects, too
LIMIT_SECONDS = 120.0
LEASE_SECONDS = 1.5
FILE_ROWS, FIRST_ROWS, SECOND_ROWS = 20, 20, 40
START = datetime(2026, 1, 1, tzinfo=UTC)
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """What happened in a race; `faults` is empty if everything is as it must be."""

    first_batches: int
    awaited: int
    """Batches that the second driver had committed when the first was continued, at least."""
    manifests: int
    rows: int
    reason: str
    faults: tuple[str, ...]


class RacingDriver:
    """A driver process; its output is in a file."""

    def __init__(self, folder: Path, name: str, root: str, options: Mapping[str, str], rows_per_batch: int) -> None:
        self.log, self.report = folder / f"{name}.log", folder / f"{name}.json"
        source = os.pathsep.join([str(TESTS), str(Path(headrace.__file__).parents[1])])
        environment = {
            **os.environ, "PYTHONPATH": source, "TZ": "UTC", "HEADRACE_LEASE_SECONDS": str(LEASE_SECONDS),
            "HEADRACE_CACHE_DIR": str(folder / f"cache-{name}"),
        }  # fmt: skip
        program = [sys.executable, "-m", "support.racing_driver", root, json.dumps(dict(options))]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*program, str(self.report), str(rows_per_batch)], env=environment, stdout=out, stderr=out
            )

    def read_steps(self, step: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [found for line in lines if line.startswith("{") and (found := json.loads(line))["step"] == step]

    def wait_for(self, step: str, count: int = 1) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while len(self.read_steps(step)) < count:
            if time.monotonic() > limit or self.process.poll() not in (None, 0):
                raise RuntimeError(f"{step} missing: {self.log.read_text()}")
            if self.process.poll() == 0 and len(self.read_steps(step)) < count:
                raise RuntimeError(f"ended before {count} × {step}: {self.log.read_text()}")
            time.sleep(0.02)


def keep_versions(options: Mapping[str, str]) -> Any:
    """Let the bucket keep all versions of its objects; return the client."""
    client = boto3.client(
        "s3", endpoint_url=options["endpoint"], aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"], region_name=options["region"],
    )  # fmt: skip
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=RACE_BUCKET)
    client.put_bucket_versioning(Bucket=RACE_BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return client


def write_input(root: str, options: Mapping[str, str], files: int) -> None:
    """Write the files of the source."""
    store = open_store(f"{root}/in", options=options)
    schema = pa.schema([("k", pa.int32()), ("n", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
    for file in range(files):
        numbers = [file * FILE_ROWS + row for row in range(FILE_ROWS)]
        rows = [{"k": n % 4, "n": n * 31 % 43, "time": START + timedelta(milliseconds=50 * n - 400 * (n % 3))} for n in numbers]
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(pa.Table.from_pylist(rows, schema), sink)
        store.put(f"{file:05d}.parquet", [sink.getvalue()])


def read_history(root: str, options: Mapping[str, str], client: Any) -> list[tuple[int, str]]:
    """The batch and the writer of every version of the manifest, oldest first."""
    location = f"{root}/checkpoint"
    store = open_store(location, read_identity(open_store(location, options=options)), options)
    prefix = f"{location.removeprefix(f's3://{RACE_BUCKET}/')}/{CURRENT_MANIFEST}"
    found = []
    for page in client.get_paginator("list_object_versions").paginate(Bucket=RACE_BUCKET, Prefix=prefix):
        for version in page.get("Versions", ()):
            content = client.get_object(Bucket=RACE_BUCKET, Key=prefix, VersionId=version["VersionId"])["Body"].read()
            manifest = documents.decode_record(store, CURRENT_MANIFEST, content)
            found.append((manifest.batch, manifest.writer))
    return found[::-1]


def find_faults(history: list[tuple[int, str]]) -> list[str]:
    """Batches that were committed twice or left out; a new owner publishes the newest manifest again, unchanged."""
    return [
        f"{batch} by {writer}, then {next_batch} by {next_writer}"
        for (batch, writer), (next_batch, next_writer) in pairwise(history)
        if next_batch != batch + (writer == next_writer)
    ]


def compute_expected(root: str, options: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """The rows of the reference back-end over the same files; its sinks are in a bucket folder of their own."""
    with hr.Session(folder / "reference", backend="reference", storage_options=options) as session:
        judged = f"{root}-judge"
        source = open_store(f"{root}/in", options=options)
        copy = open_store(f"{judged}/in", options=options)
        for key in source.list(""):
            copy.put(key, [source.get(key)])
        declare(session, judged)
        session.drain()
        return read_rows(session, judged, dict(options))


def list_unpublished(root: str, options: Mapping[str, str]) -> list[str]:
    """Open the checkpoint once more, which deletes what the first driver wrote after the takeover; return what it leaves."""
    hr.Session(f"{root}/checkpoint", backend="local", storage_options=options).close()
    store = open_store(f"{root}/out", options=options)
    return [key for name in FILE_QUERIES for key in store.list(f"{name}/_pending")]


def run_race(options: Mapping[str, str], folder: Path, chance: random.Random, files: int) -> RaceOutcome:
    """Run a race in a bucket that keeps versions; `folder` gets logs."""
    root = f"s3://{RACE_BUCKET}/{uuid.uuid4().hex}"
    client = keep_versions(options)
    write_input(root, options, files)
    before, pause, awaited = chance.randint(1, 6), chance.uniform(0, 0.5), chance.randint(0, 4)
    drivers = [first := RacingDriver(folder, "first", root, options, FIRST_ROWS)]
    try:
        first.wait_for("opened")
        drivers.append(second := RacingDriver(folder, "second", root, options, SECOND_ROWS))
        second.wait_for("started")
        first.wait_for("committed", before)
        time.sleep(pause)
        first.process.send_signal(signal.SIGSTOP)
        second.wait_for("opened")
        second.wait_for("committed", awaited)
        first.process.send_signal(signal.SIGCONT)
        codes = [driver.process.wait(LIMIT_SECONDS) for driver in drivers]
    finally:
        for driver in drivers:
            driver.process.kill()
            driver.process.wait()
    failures = first.read_steps("failed")
    reason = failures[0]["error"] if failures else ""
    faults = [] if codes == [3, 0] else [f"exit codes {codes}: {first.log.read_text()[-500:]} {second.log.read_text()[-500:]}"]
    if not failures or failures[0]["kind"] != "OwnershipLostError":
        faults.append(f"the first driver did not say why it ended: {failures}")
    history = read_history(root, options, client)
    faults += find_faults(history)
    found = json.loads(second.report.read_text()) if second.report.exists() else {}
    expected = compute_expected(root, options, folder)
    faults += [f"rows of {name} differ" for name in expected if found.get(name) != expected[name]]
    faults += [f"left: {key}" for key in list_unpublished(root, options)]
    return RaceOutcome(
        len(first.read_steps("committed")), awaited, len(history), sum(map(len, found.values())), reason, tuple(faults)
    )
