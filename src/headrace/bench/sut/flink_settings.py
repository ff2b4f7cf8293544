"""Configure Flink: memory for a number of queries on this machine, and the tables over the streams of the driver.

Options: "max_queries" is the number of concurrent queries that get slots and buffers; "parallelism" defaults to the number of
cores; "settings" are further Flink settings by name; "java" are further JVM options.
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

FLINK_MODES = ("statement_set", "separate")
_CLUSTER_PREFIXES = ("taskmanager.", "jobmanager.", "rest.", "cluster.")
_DEFAULT_MAX_QUERIES = 256
_SLOT_MIB = 16  # MiB of managed memory; a buffering operator needs more than one and is slower with very many
_BYTES_PER_MIB = 1 << 20
_FLINK_TYPES = {"TIMESTAMP": "TIMESTAMP(3)"}


@dataclass(frozen=True, slots=True)
class FlinkSettings:
    """Flink settings for a number of queries on this machine; docs/benchmark-systems.md gives the reasons."""

    mode: str
    max_queries: int  # concurrent queries
    java: tuple[str, ...]
    cluster: Mapping[str, str]
    table: Mapping[str, str]

    @staticmethod
    def from_options(options: Mapping[str, Any], queries: int) -> FlinkSettings:
        """Return the settings for this machine, the adapter's options and a number of queries."""
        mode = options.get("mode", FLINK_MODES[0])
        if mode not in FLINK_MODES:
            raise HeadraceError(f"unknown flink mode '{mode}'", detail=f"modes: {', '.join(FLINK_MODES)}")
        cores = int(options.get("parallelism") or os.cpu_count() or 1)
        max_queries = max(queries, 1, int(options.get("max_queries", _DEFAULT_MAX_QUERIES if mode == "separate" else 1)))
        slots = cores * max_queries if mode == "separate" else cores
        heap = max(2048, psutil.virtual_memory().total // 4 // _BYTES_PER_MIB)
        buffers = 128 + 2 * cores * max_queries
        managed = min(heap, slots * (_SLOT_MIB if mode == "separate" else max(32, 5 * max_queries)))
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
        extra = {name: str(value) for name, value in options.get("settings", {}).items()}
        cluster |= {name: value for name, value in extra.items() if name.startswith(_CLUSTER_PREFIXES)}
        job |= {name: value for name, value in extra.items() if not name.startswith(_CLUSTER_PREFIXES)}
        java = (f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={buffers + managed + 1024}m", *options.get("java", ()))
        return FlinkSettings(mode, max_queries, java, cluster, job)

    def describe(self) -> dict[str, Any]:
        """Return the settings as the result document lists them."""
        source = "Arrow batches pulled by a Java source, one split per partition"
        summary = {"mode": self.mode, "source": source, "checkpoints": "none", "java": list(self.java)}
        return {**summary, **self.cluster, **self.table}


def build_table_ddl(stream: SutStream, driver: str, group: str) -> str:
    """Return the DDL of a stream; event time is in milliseconds like all row-time attributes of Flink."""
    columns = [
        f"`{field.name}` {_FLINK_TYPES.get(type_name(field.type), type_name(field.type))}" for field in stream.schema.fields
    ]
    delay = f" - INTERVAL '{stream.spec.watermark:.3f}' SECOND(4, 3)" if stream.spec.watermark else ""
    options = {"connector": "headrace", "address": driver, "stream": stream.name, "group": group}
    options["partitions"] = str(stream.spec.partitions)
    option_list = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return (
        f"CREATE TEMPORARY TABLE `{stream.name}` ({', '.join(columns)}, WATERMARK FOR `{stream.spec.time_column}` AS "
        f"`{stream.spec.time_column}`{delay}) WITH ({option_list})"
    )
