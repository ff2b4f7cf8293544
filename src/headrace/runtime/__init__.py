"""The driver of a session: commands, epochs, micro-batches, and the checkpoint that makes each batch take effect exactly once.

`coordinator` runs micro-batches in sequence: it logs the batch, runs it on the back-end and commits the resulting state
(`checkpoint`, `state`). `epoch` derives new plans when the set of live queries changes. `delivery` passes rows to callbacks after
the commit. `backend` is the interface of an execution back-end, and `backends` loads a back-end by name. Only one thread at a
time runs a batch. The driver plans, commits and reports; it never reads source rows.
"""
