"""What happens when: commands, epochs, micro-batches, and the checkpoint that makes them happen once.

`coordinator` runs one batch after the other: log what is meant, run it, commit what holds (`checkpoint`, `state`); `epoch`
turns changed sets of queries into new plans; `delivery` hands rows to callbacks after the commit; `backend` is the one
interface behind which an engine sits, and `backends` loads one by name. One thread at a time runs a batch, and no source
row ever gets here: the driver plans, commits and answers.
"""
