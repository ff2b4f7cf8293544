"""A bug of headrace is an InternalError with a reference that the log has too; an error of the user stays a SqlError."""

from __future__ import annotations

import logging
import re

import pytest

from headrace.errors import InstallationError, InternalError, SqlError, log_internal_error
from headrace.sql import Catalog, bind_query, binder, parser

QUERY = "SELECT price FROM purchases"
REFERENCE = re.compile(r"reference ([0-9a-f]{8})\b")


@pytest.fixture
def broken_binder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binder with a bug: the last check of every plan raises KeyError."""
    monkeypatch.setattr(binder, "check_plan_size", lambda plan: {}["bug"])


@pytest.mark.usefixtures("broken_binder")
def test_a_bug_of_the_binder_is_logged_and_raised_as_an_internal_error(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InternalError) as caught:
        bind_query(QUERY, catalog)
    (reference,) = REFERENCE.findall(caught.value.detail)
    assert caught.value.message == "internal error: the query could not be bound"
    assert "report it" in caught.value.hint
    assert isinstance(caught.value.__cause__, KeyError)
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "headrace")
    assert f"reference {reference}" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


@pytest.mark.usefixtures("broken_binder")
def test_a_bug_has_the_same_reference_every_time(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind_and_get_detail() -> str:
        with pytest.raises(InternalError) as caught:
            bind_query(QUERY, catalog)
        return caught.value.detail

    details = {bind_and_get_detail() for _ in range(2)}
    monkeypatch.setattr(binder, "check_plan_size", lambda plan: 1 // 0)
    assert len(details | {bind_and_get_detail()}) == 2


@pytest.mark.usefixtures("broken_binder")
def test_an_error_of_the_user_is_not_an_internal_error(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SqlError, match="unknown column 'prize'") as caught:
        bind_query("SELECT prize FROM purchases", catalog)
    assert caught.value.place
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_text_on_which_sqlglot_fails_is_a_sql_error(catalog: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SqlError, match="query cannot be parsed"):  # sqlglot raises ValueError
        bind_query("SET x = `` 1", catalog)
    assert not caplog.records


def test_a_bug_of_the_own_parser_class_is_an_internal_error(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "MAX_NESTING", None)  # a method of _Parser raises TypeError
    with pytest.raises(InternalError):
        bind_query(QUERY, catalog)


def test_an_error_without_a_traceback_has_a_reference() -> None:
    assert REFERENCE.search(log_internal_error("it failed", ValueError("never raised")).detail)


def test_a_compiled_sqlglot_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("interpreted classes cannot inherit from compiled")

    parser.check_sqlglot()
    monkeypatch.setattr(parser.SparkParser, "__init__", refuse)
    with pytest.raises(InstallationError, match=r"sqlglotc(.|\n)*hint: .*pip uninstall sqlglotc"):
        parser.check_sqlglot()
