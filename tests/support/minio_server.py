"""A MinIO server in a process of its own, for scripts that measure or torture; its binary is not a dependency."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import boto3

_USER, _PASSWORD = "headrace", "headrace-secret"
_REQUESTS = re.compile(r'^minio_bucket_requests_total\{api="(\w+)",bucket="([^"]+)".*\} (\S+)$', re.MULTILINE)


@contextlib.contextmanager
def run_minio(binary: str, folder: Path, buckets: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run a server with some buckets on a free port of the loopback interface; yield the storage options."""
    environment = {
        **os.environ, "MINIO_ROOT_USER": _USER, "MINIO_ROOT_PASSWORD": _PASSWORD, "MINIO_PROMETHEUS_AUTH_TYPE": "public"
    }  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "minio.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "server", str(folder / "minio"), "--address", address, "--console-address", "127.0.0.1:0"],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    options = {
        "endpoint": f"http://{address}",
        "access_key_id": _USER,
        "secret_access_key": _PASSWORD,
        "region": "us-east-1",
    }
    try:
        for bucket in buckets:
            _create_bucket(options, bucket)
        yield options
    finally:
        process.terminate()
        process.wait()


def _create_bucket(options: dict[str, str], bucket: str) -> None:
    keys = {"aws_access_key_id": _USER, "aws_secret_access_key": _PASSWORD, "region_name": options["region"]}
    client = boto3.client("s3", endpoint_url=options["endpoint"], **keys)
    for attempt in range(100):
        try:
            client.create_bucket(Bucket=bucket)
        except Exception:  # not started yet
            if attempt == 99:
                raise
            time.sleep(0.2)
        else:
            return


def count_requests(options: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return the number of requests that the server has counted, by bucket and operation; it is ten seconds old at most."""
    with urllib.request.urlopen(f"{options['endpoint']}/minio/v2/metrics/bucket", timeout=30) as response:
        text = response.read().decode()
    counts: dict[str, dict[str, float]] = {}
    for operation, bucket, count in _REQUESTS.findall(text):
        counts.setdefault(bucket, {})[operation] = float(count)
    return counts
