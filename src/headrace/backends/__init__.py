"""Engines, each behind `runtime.backend.Backend`: run the two stages of a job somewhere, keep nothing.

`spark` is the real one. `local` runs the same stages in this process, one after the other, for tests and small work.
`oracle` wraps `reference`, which runs each query alone and defines what is right. `runtime.backends` loads them by name,
so nobody waits for an engine he does not use.
"""
