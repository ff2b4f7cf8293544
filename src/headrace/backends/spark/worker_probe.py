"""The probe that runs in a worker; it imports the standard library only, because the worker may not have headrace.

It is pickled by value (`cluster.probe_workers`), so that a worker without headrace can still say so.
"""

from __future__ import annotations

import importlib
import os
import pickle
import platform
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def import_modules(names: Sequence[str], numbers: Iterable[int]) -> list[int]:
    """Import modules in this worker, which Spark uses again for later tasks."""
    del numbers
    for name in names:
        importlib.import_module(name)
    return []


def run_probe(request: Mapping[str, Any], numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return the report of this worker: its place, versions of packages, and what of the request it cannot do.

    It takes `seconds`, so that tasks which are repeated reach other executors, too.
    """
    del numbers
    report: dict[str, Any] = {
        "host": socket.gethostname(),
        "address": os.environ.get("SPARK_LOCAL_IP", ""),
        "process": os.getppid(),  # the daemon, of which each executor has one
        "folder": os.getcwd(),  # noqa: PTH109
        "python": platform.python_version(),
        "places": {},
        "refused": "",
        "answer": "",
    }
    report["versions"], report["missing"] = import_packages(request["packages"])
    if "headrace" in report["versions"]:
        if request["key"]:
            _answer_nonce(request, report)
        if request["paths"]:
            _check_places(request, report)
    time.sleep(request["seconds"])
    return [report]


def run_probe_on_batches(request: Mapping[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Run the probe as a function over Arrow batches, as Spark Connect needs it; yield the report, pickled."""
    arrow = importlib.import_module("pyarrow")  # which Spark needs for such functions
    for _ in batches:
        pass
    yield arrow.RecordBatch.from_pydict({"report": [pickle.dumps(run_probe(request, ())[0])]})


def import_packages(packages: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Import packages; return the versions of those that can be imported, and why others cannot."""
    versions, missing = {}, {}
    for name in packages:
        try:
            versions[name] = str(importlib.import_module(name).__version__)
        except Exception as error:  # noqa: BLE001  a broken package may raise anything when it is imported
            missing[name] = f"{type(error).__name__}: {error}"
    return versions, missing


def _check_places(request: Mapping[str, Any], report: dict[str, Any]) -> None:
    """Try what tasks will do with folders and URLs, by the code and with the options of the session."""
    try:
        places = importlib.import_module("headrace.connectors.worker_places")
        locations = importlib.import_module("headrace.storage.locations")
        job = pickle.loads(request["job"])
        job.prepare_environment()
        with locations.use_storage_options(job.storage_options):
            report["places"] = places.check_places(pickle.loads(request["paths"]))
    except Exception as error:  # noqa: BLE001  other code of the same version, or a library that is missing
        report["refused"] = f"{type(error).__name__}: {error}"


def _answer_nonce(request: Mapping[str, Any], report: dict[str, Any]) -> None:
    """Read the nonce of the driver from the checkpoint, and write an answer there."""
    key, answer = request["key"], f"{request['key']}.{uuid.uuid4().hex[:8]}"
    try:
        store = pickle.loads(request["job"]).store
        if store.get(key) != request["nonce"]:
            report["refused"] = f"{store.name_of(key)} has other content than the driver wrote"
            return
        store.put(answer, [request["nonce"]], sync=False)
        report["answer"] = answer
    except Exception as error:  # noqa: BLE001  reported, whatever it is
        report["refused"] = f"{type(error).__name__}: {error}"
