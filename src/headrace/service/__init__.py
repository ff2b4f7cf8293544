"""The HTTP service around one session, for people and for programs that do not embed headrace.

`host` owns the session and its surroundings; `notifier` wakes coroutines after every micro-batch; `result_pages` reads results
from the checkpoint; `subscriptions` sends them to live readers; `auth` maps tokens to roles; `problems` turns errors into
responses. `api` has the HTTP paths, one module for each resource, and `app` assembles them. The service computes nothing itself:
a request becomes a call of `Session`, and a reader is a position in result files that exist anyway, so that no reader can slow
the pipeline down.
"""
