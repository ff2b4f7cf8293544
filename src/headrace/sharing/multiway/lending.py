"""A query that begins in the past: rows that stores hold for other queries are its rows, too.

    d   added ├──────────────────────────────▶
    q                  added, with its past ├──▶       sees from the beginning what d saw, and gives out what is new from now on

For every input of the query there must be a live one whose rows are at least those it would have: the same relation and
selection, no shorter range, all columns that it looks at, and no stream less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.plan.multiway import MultiwayQuery
from headrace.sharing.multiway.asked import Asked, asked, relation_of
from headrace.sharing.multiway.loan import Loan
from headrace.sharing.shared_plan import LiveQuery


def loans(new: LiveQuery, live: Iterable[LiveQuery], first: Mapping[int, int]) -> tuple[Loan, ...]:
    """Return what others lend to a new query, of each of its inputs; nothing if of one nobody has enough."""
    mine = asked(new)
    others = [asked(one) for one in live if isinstance(one.plan, MultiwayQuery) and one.id != new.id]
    found = []
    for relation in mine.inputs:
        lenders = [one for one in others if relation in one.inputs and _has_enough(one, mine, relation)]
        if not lenders:
            return ()
        lender = min(lenders, key=lambda one: (one.since, first[one.id], one.id))
        found.append(Loan(relation, lender.id, lender.bit, first[lender.id], lender.since))
    return tuple(found)


def _has_enough(lender: Asked, borrower: Asked, relation: str) -> bool:
    theirs, wanted = lender.inputs[relation], borrower.inputs[relation]
    kept = {name for name in lender.columns if relation_of(name) == relation}
    return (
        (theirs.stream, theirs.predicate) == (wanted.stream, wanted.predicate)
        and theirs.range + lender.lateness >= wanted.range + borrower.lateness
        and theirs.lateness >= wanted.lateness
        and set(borrower.streams) <= set(lender.streams)  # so the lender's watermark is never ahead: nothing was let go too early
        and {name for name in borrower.columns if relation_of(name) == relation} <= kept
    )
