"""The only place that knows Spark.

`pipeline` is the path of a row: one Spark job for a micro-batch, map → exchange → map. `backend` runs one after the other,
`dataframe` makes any streaming DataFrame a stream, `environment` starts Spark as headrace wants it. Recovery is the business
of `runtime.checkpoint` alone.
"""
