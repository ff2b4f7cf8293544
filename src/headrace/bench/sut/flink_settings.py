"""How Flink is set up: memory for a number of queries on this machine, and the tables over the driver's streams.

Options: "max_queries" is for how many queries at once slots and buffers are set aside; "parallelism" is the number of cores
unless given; "settings" are more of Flink's own, by name; "java" more options of its JVM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from headrace.bench.sut.adapter import SutStream
from headrace.errors import HeadraceError
from headrace.model.schema import type_name

MODES = ("statement_set", "separate")
_OF_CLUSTER = ("taskmanager.", "jobmanager.", "rest.", "cluster.")
_MAX_QUERIES = 256
_SLOT = 16  # MiB of managed memory; an operator that buffers needs more than one, and is slower with very many
_MEBI = 1 << 20
_TYPES = {"TIMESTAMP": "TIMESTAMP(3)"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Flink's settings for a number of queries on this machine; docs/benchmark-systems.md says why."""

    mode: str
    most: int  # queries at once
    java: tuple[str, ...]
    cluster: Mapping[str, str]
    table: Mapping[str, str]

    @staticmethod
    def of(options: Mapping[str, Any], queries: int) -> Settings:
        """Look at the machine, and at the adapter's options."""
        mode = options.get("mode", MODES[0])
        if mode not in MODES:
            raise HeadraceError(f"flink has no mode '{mode}'", detail=f"modes: {', '.join(MODES)}")
        cores = int(options.get("parallelism") or os.cpu_count() or 1)
        most = max(queries, 1, int(options.get("max_queries", _MAX_QUERIES if mode == "separate" else 1)))
        slots = cores * most if mode == "separate" else cores
        heap = max(2048, psutil.virtual_memory().total // 4 // _MEBI)
        buffers = 128 + 2 * cores * most
        managed = min(heap, slots * (_SLOT if mode == "separate" else max(32, 5 * most)))
        cluster = {
            "rest.bind-address": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": str(slots),
            "taskmanager.memory.managed.size": f"{managed}m",
            "taskmanager.memory.network.min": f"{buffers}m",
            "taskmanager.memory.network.max": f"{buffers}m",
        }
        job = {
            "parallelism.default": str(cores),
            "pipeline.object-reuse": "true",
            "pipeline.auto-watermark-interval": "50 ms",
            "table.exec.source.idle-timeout": "1 s",
            "table.local-time-zone": "UTC",
            "restart-strategy.type": "none",
        }
        given = {name: str(value) for name, value in options.get("settings", {}).items()}
        cluster |= {name: value for name, value in given.items() if name.startswith(_OF_CLUSTER)}
        job |= {name: value for name, value in given.items() if not name.startswith(_OF_CLUSTER)}
        java = (f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={buffers + managed + 1024}m", *options.get("java", ()))
        return Settings(mode, most, java, cluster, job)

    def described(self) -> dict[str, Any]:
        """Return what a result says about them."""
        source = "Arrow batches pulled by a Java source, a split for each partition"
        told = {"mode": self.mode, "source": source, "checkpoints": "none", "java": list(self.java)}
        return {**told, **self.cluster, **self.table}


def table(stream: SutStream, driver: str, group: str) -> str:
    """Return the DDL of a stream: event time is in milliseconds, as Flink's row-time attributes are."""
    columns = [f"`{field.name}` {_TYPES.get(type_name(field.type), type_name(field.type))}" for field in stream.schema.fields]
    delay = f" - INTERVAL '{stream.spec.watermark:.3f}' SECOND(4, 3)" if stream.spec.watermark else ""
    options = {"connector": "headrace", "address": driver, "stream": stream.name, "group": group}
    options["partitions"] = str(stream.spec.partitions)
    given = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return (
        f"CREATE TEMPORARY TABLE `{stream.name}` ({', '.join(columns)}, WATERMARK FOR `{stream.spec.time}` AS "
        f"`{stream.spec.time}`{delay}) WITH ({given})"
    )
