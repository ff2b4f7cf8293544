"""What the shared plan looks like and costs, asked of a running session: by the model, at rates of late."""

from __future__ import annotations

from headrace.session import Session
from headrace.sharing.account import Account, accounts
from headrace.sharing.picture import Picture, picture
from headrace.sharing.statistics import measured
from headrace.sharing.what_if import Addition, what_if
from headrace.sql import bind_query


def picture_of(session: Session) -> Picture:
    """Return every shared operator and which queries use it, as boxes and lines."""
    engine = session.coordinator
    return picture(list(engine.live.values()), engine.plans_now(), engine.probes)


def accounts_of(session: Session) -> dict[int, Account]:
    """Return what each query costs in company and what it would cost alone, by its id."""
    return accounts(session.coordinator.plans_now(), _rates(session))


def addition_to(session: Session, sql: str) -> Addition:
    """Return how much work a query would add, without adding it."""
    engine = session.coordinator
    known = {name: measured(stream.rate, stream.keys) for name, stream in engine.state.streams.items()}
    return what_if(list(engine.live.values()), bind_query(sql, engine.catalog()), _rates(session), known)


def _rates(session: Session) -> dict[str, float]:
    return {name: stream.rate for name, stream in session.coordinator.state.streams.items()}
