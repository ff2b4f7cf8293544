"""Back-ends, each behind `runtime.backend.Backend`: run the two stages of a batch job and keep no state.

`spark` is the one for production. `local` runs the same stages in this process, one after the other, for tests and small
inputs. `oracle` wraps `reference`, which runs each query alone and defines the correct results. `runtime.backend` loads a
back-end by name, so that a process imports only the engine that it uses.
"""
