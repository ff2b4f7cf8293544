"""Run a micro-batch as two stages of plain functions: a map task per input split, a reduce task per key partition.

A shuffle by key partition connects the stages; a back-end has to provide nothing else (see `runtime.backend`). Workers keep
no state between batches, only caches of immutable checkpoint files (`worker_cache`). A state file is named after batch and
partition, a result file also after the attempt; the manifest names the files that count. `batch_job` and `stage_messages` define
the messages.

    map stage     read → selection → slicing → aggregation | sessions | routing → shuffle blocks
    reduce stage  shuffle blocks + stored partials → windows that close → finalize → sinks; open windows → state file

A query that fails is recorded in `QueryFailures` and emits no rows; other queries are not affected.
"""
