"""The driver of a session: commands, epochs, micro-batches, and the checkpoint that makes each batch take effect exactly once.

`coordinator` runs micro-batches in sequence: it logs the batch, runs it on the back-end and commits the resulting state
(`engine_state`, `storage.checkpoint`). `epochs` and `sliding_join_epochs` derive new plans when the set of live queries
changes, and `replanning` when statistics change. `delivery` passes rows to callbacks after the commit, `udf_registry` holds the
functions of users, and `metrics` reports on batches. `backend` is the interface of an execution back-end, and loads one by
name. Only one thread at a time runs a batch. The driver plans, commits and reports; it never reads source rows.
"""
