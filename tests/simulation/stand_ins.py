"""Stand-ins for threads, time, random ids and searches with a time limit: with them, a seed always gives the same run."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from random import Random
from typing import Any

import headrace.query
import headrace.session
from headrace.engine import map_stage, reduce_stage
from headrace.runtime import coordinator, delivery, sink_publication
from headrace.storage import checkpoint, posix, result_log, store
from properties.harness import RandomProbeOrders
from simulation.clock import VirtualClock

_PACKED_FILES = 4  # so that results are packed within a short run


class _InlineExecutor:
    """Runs work at once, in the place of a thread pool."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as failure:  # noqa: BLE001  a future keeps any error; Crashed is not an Exception
            error = failure

        def get() -> Any:
            if error is not None:
                raise error
            return result

        return types.SimpleNamespace(done=lambda: True, result=get)

    def shutdown(self, **_: Any) -> None:
        pass


def _deliver_at_once(results: delivery.ResultDelivery) -> None:
    """Deliver in the place where a thread is started, and enforce no time limits."""
    if results._turns and results._worker is None:
        results._worker = threading.current_thread()
        results._work()


class QuietProbeOrders(RandomProbeOrders):
    """Random probe orders, without the search of the optimizer: the solver has a time limit in real time."""

    def _find_cheaper_choice(self, *_: Any) -> None:
        return None


class StandIns:
    """Attributes of the product that are replaced, until `remove`."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class."""
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def install(self, seed: int, clock: VirtualClock) -> None:
        """Replace everything whose outcome the seed does not decide."""
        ids = Random(seed)
        stable = types.SimpleNamespace(uuid4=lambda: types.SimpleNamespace(hex=f"{ids.getrandbits(128):032x}"))
        for module in (posix, checkpoint, store):
            self.replace(module, "uuid", stable)
        self.replace(coordinator, "secrets", types.SimpleNamespace(token_hex=lambda size: ids.randbytes(size).hex()))
        for module in (headrace.session, headrace.query, map_stage, reduce_stage, delivery):
            self.replace(module, "time", clock)
        self.replace(delivery.ResultDelivery, "_start_threads", _deliver_at_once)
        self.replace(result_log, "ThreadPoolExecutor", _InlineExecutor)
        self.replace(result_log, "PACKED_FILES", _PACKED_FILES)
        self.replace(sink_publication, "_THREADS", 1)

    def remove(self) -> None:
        """Put everything back."""
        for owner, name, value in reversed(self._replaced):
            setattr(owner, name, value)
        self._replaced.clear()
