"""Catalog and `bind` fixtures of the SQL tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.logical import LogicalQuery
from headrace.sql import Catalog, bind_query

PURCHASES = (
    "user_id INT, gem_pack INT, price DOUBLE, name STRING, cost DECIMAL(10,2), big BIGINT, tiny TINYINT, f FLOAT, "
    "d DATE, ok BOOLEAN, time TIMESTAMP"
)


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog((
        Stream("purchases", Schema.parse(PURCHASES), "time"),
        Stream("ads", Schema.parse("user_id BIGINT, ad_id INT, price INT, ts TIMESTAMP"), "ts"),
        Stream("my stream", Schema.parse("a INT, window_start TIMESTAMP"), "window_start"),
    ))  # fmt: skip


@pytest.fixture(scope="session")
def bind(catalog: Catalog) -> Callable[[str], LogicalQuery]:
    return lambda text: bind_query(text, catalog)
