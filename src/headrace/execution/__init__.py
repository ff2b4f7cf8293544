"""A micro-batch as two plain functions: `stage_one` for each task, `stage_two` for each key partition.

Between them, bytes are exchanged by key partition; that is all an engine has to provide (see `runtime.backend`). A worker
keeps nothing between batches but caches of files that never change. Whatever it writes is named after the batch and the
partition, so running a batch again replaces what the first try left. `job` holds the values that travel.

    stage one   read → selection → slicing → aggregation | sessions | routing → parcels
    stage two   parcels + stored partials → windows that close → finish → sinks, and what stays open → state file

A query that cannot go on is noted in `Failures` and gives no rows; the others must not notice.
"""
