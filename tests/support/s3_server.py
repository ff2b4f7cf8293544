"""A server of the S3 protocol in this process, for tests; other processes reach it by its address."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "headrace-test"


@contextlib.contextmanager
def run_s3_server() -> Iterator[dict[str, str]]:
    """Run a server on a free port of the loopback interface; yield the storage options for its bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {
            "endpoint": f"http://{host}:{port}",
            "access_key_id": "test",
            "secret_access_key": "test",
            "region": "us-east-1",
        }
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=options["endpoint"], **keys)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield options
    finally:
        server.stop()
