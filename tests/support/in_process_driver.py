"""A benchmark driver in this process, with a clock that the test advances."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from headrace.bench.driver.hub import DriverHub
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.server import DriverServer
from headrace.bench.driver.streams import StreamSpec
from headrace.connectors.tcp import TcpConnection

BEGIN = 1_700_000_000  # seconds: in the past, because rows of the future are dropped
BEGIN_US = BEGIN * 1_000_000


class InProcessDriver:
    """A driver with open ports and serving threads; only `advance` produces rows."""

    def __init__(self, *streams: StreamSpec, capacity_rows: int = 1_000_000) -> None:
        self.seconds = float(BEGIN)
        self.hub = DriverHub(streams, capacity_rows, lambda: self.seconds)
        self.driver = DriverServer(self.hub)
        self.address = f"127.0.0.1:{self.driver.port}"
        self.connection = TcpConnection(self.address, timeout=10)

    def start(self, rate: float | RateScript | None) -> None:
        self.hub.start(RateScript.constant(rate) if isinstance(rate, int | float) else rate)

    def advance(self, seconds: float) -> None:
        self.seconds = round(self.seconds + seconds, 6)
        self.hub.tick()

    def request(self, request: str, **arguments: Any) -> dict[str, Any]:
        return self.connection.send_request(request, **arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.connection.close()
        self.driver.close()


def small_stream(name: str = "s", generator: str = "fields", **more: Any) -> StreamSpec:
    """Return a stream with a small pool of rows."""
    return StreamSpec(name, generator, **{"keys": 10, "pool_rows": 1000, **more})
