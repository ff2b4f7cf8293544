"""Binding of query texts with a cache: a text is bound when the query is added, when its batch runs, and after recovery."""

from __future__ import annotations

from functools import lru_cache

from headrace.plan.derived import AnyQuery
from headrace.sql import Catalog
from headrace.sql import bind_query as bind_text

# 4,000 characters of arithmetic make a plan of 170 KB, so that the cache stays below some 50 MB whatever clients send.
_MAX_CACHED_PLANS = 256
MAX_CACHED_CHARACTERS = 4_000


def bind_query(text: str, catalog: Catalog) -> AnyQuery:
    """Return the logical plan, which is immutable; raises SqlError, also for a text that it has refused before."""
    return (_bind_cached if len(text) <= MAX_CACHED_CHARACTERS else bind_text)(text, catalog)


@lru_cache(maxsize=_MAX_CACHED_PLANS)
def _bind_cached(text: str, catalog: Catalog) -> AnyQuery:
    return bind_text(text, catalog)
