"""HTTP around one session: what people and programs without Python on this machine use.

`host` owns the session and what surrounds it; `news` tells coroutines of every micro-batch; `kept` reads results that are in
the checkpoint; `tokens` says who may do what; `refusals` makes answers of errors. `api` has the paths, one module for each
kind of thing, and `app` puts them together. Nothing here computes: a request becomes a call of `Session`, and a reader is a
position in files that are there anyway, so that no reader can slow the pipeline down.
"""
