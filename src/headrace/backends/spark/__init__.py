"""The only place that knows Spark.

`pipeline` is the path of a row: one Spark job for a micro-batch, map → exchange → map. `source` is the streaming source
that Spark schedules; it carries ranges, not rows. `backend` keeps the streaming query running and hands it one batch at a
time, `dataframe` makes any streaming DataFrame a stream, `environment` starts Spark as headrace wants it. Spark's own
checkpoint is thrown away at every start: recovery is the business of `runtime.checkpoint` alone.
"""
