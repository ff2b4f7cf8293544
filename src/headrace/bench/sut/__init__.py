"""Systems under test: each takes the same rows and the same queries, and is timed from outside.

`adapter` says what a system must be able to do, `process` makes a process of it, for the runner and for the system itself.
`headrace`, `spark`, `flink`, `limit` and `duckdb` are the systems, each `python -m headrace.bench.sut.NAME`; two more are
headrace with less sharing between joins in SLIDING windows: `headrace_common` and `headrace_apart`. `java` has the
connectors of those that run on the JVM, compiled by `connector`. `over_files_…` are the peers of `headrace bench scaling`, which
read files and know nothing of all this.
"""
