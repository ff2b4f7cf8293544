"""The Spark back-end: the only package that depends on Spark.

`pipeline` is the path of a row: one Spark job for each micro-batch, map → shuffle → reduce. `backend` runs these jobs one at a
time and pickles UDFs, `dataframe_source` makes a streaming DataFrame a source, and `environment` starts Spark with the settings
of headrace. Recovery uses the checkpoint of headrace only, not that of Spark.
"""
