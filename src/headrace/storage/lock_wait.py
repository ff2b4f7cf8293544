"""How a session waits for the lock on a checkpoint that another session has: as a standby, or only until that is known."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from headrace.errors import CheckpointError

_LOG = logging.getLogger("headrace")


@dataclass(slots=True)
class LockWait:
    """A wait for a lock, which another thread may cancel. A standby waits for as long as another session has the lock."""

    is_standby: bool = False
    holder: str = ""
    """The session that has the lock, as far as it is known."""
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def report(self, location: str, holder: str) -> None:
        """Note the owner of the lock; a standby logs it when it changes."""
        if self.is_standby and holder != self.holder:
            _LOG.warning("standby: checkpoint '%s' is in use by %s; this session starts when that one ends", location, holder)
        self.holder = holder

    def cancel(self) -> None:
        """Let the wait end with an error."""
        self._cancelled.set()

    def raise_if_cancelled(self) -> None:
        """Raise CheckpointError after `cancel`."""
        if self._cancelled.is_set():
            raise CheckpointError("the wait for the checkpoint was cancelled")
