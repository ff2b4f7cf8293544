"""Run the systems under test: each gets the same rows and queries, and is measured from outside.

`adapter` defines the interface of a system and `process` runs it as a process, for the runner and for the system itself.
`headrace`, `spark`, `flink`, `limit` and `duckdb` are the systems, each started as `python -m` of its module; `headrace_common`
and `headrace_apart` are headrace with less sharing between joins in SLIDING windows. `java` contains the connectors of the JVM
systems, which `jvm_connector` compiles. `over_files` has the systems of `headrace bench scaling`, which read
files and use neither the driver nor the collector.
"""
