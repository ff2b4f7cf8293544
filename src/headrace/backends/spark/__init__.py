"""The Spark back-end: the only package that depends on Spark.

`pipeline` is the path of a row: one Spark job for each micro-batch, map → shuffle → reduce. `backend` runs these jobs one at a
time and pickles UDFs, and `connect` does so where there is no SparkContext. `environment` finds the running Spark or starts one,
`cluster` waits for executors and probes them, and `dataframe_source` makes a streaming DataFrame a source. Recovery uses the
checkpoint of headrace only, not that of Spark.
"""
