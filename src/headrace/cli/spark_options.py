"""Options of Spark, from a session file and the command line: the same ones for every command that starts a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from headrace.errors import HeadraceError

MasterOption = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark master, such as spark://HOST:7077, yarn or local[4].")
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Set a setting of Spark; repeatable.")
]
ExchangeOption = Annotated[
    str | None, typer.Option("--exchange", metavar="KIND", help="How shuffle blocks travel: auto, files or shuffle.")
]
StandbyOption = Annotated[
    bool, typer.Option("--standby", help="If another process uses the checkpoint, wait and take over when it ends.")
]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs, and its settings; None is what the session chooses."""

    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    exchange: str | None = None

    def override(self, master: str | None, settings: Sequence[str] | None, exchange: str | None) -> SparkOptions:
        """Return the options of a file with those of the command line; raises HeadraceError for a setting without a value."""
        return self.merge(SparkOptions(master, parse_settings(settings or ()), exchange))

    def merge(self, stronger: SparkOptions) -> SparkOptions:
        """Return these options, with those that others have in their place."""
        return SparkOptions(
            self.master if stronger.master is None else stronger.master,
            {**self.config, **stronger.config},
            self.exchange if stronger.exchange is None else stronger.exchange,
        )

    def to_arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `Session`."""
        return {"master": self.master, "spark_config": self.config, "exchange": self.exchange or "auto"}


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the settings of `--conf NAME=VALUE`; raises HeadraceError for another form."""
    parsed = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise HeadraceError(f"invalid --conf '{text}'", hint="write --conf NAME=VALUE, such as spark.executor.memory=4g")
        parsed[name.strip()] = value
    return parsed


def flatten_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings of a TOML table, in which dots in a name make tables of tables; raises TypeError for other values."""
    settings: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            settings |= flatten_settings(value, f"{name}.")
        elif isinstance(value, str | int | float):
            settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise TypeError(f"'{name}' is not a string, a number, true or false")
    return settings
