"""The prompt, without a terminal: what Enter does, what is offered, what is remembered, and how it goes on after errors."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from headrace.cli.shell.completion import Vocabulary, classify_tokens, suggest_words
from headrace.cli.shell.executor import StatementRunner
from headrace.cli.shell.outcomes import FollowedQuery, QueryChanged, UsageList
from headrace.cli.shell.repl import (
    NameCache,
    NameCompleter,
    SyntaxLexer,
    history_path,
    is_complete,
    make_prompt_session,
    open_history,
    run_prompt_loop,
)
from headrace.errors import SessionError
from support.shell_targets import embedded_target

KNOWN = Vocabulary({"purchases": ("user_id", "price", "time"), "ads": ("ad_id", "cost", "time")}, ("revenue", "visits by hour"))


def offered(before, vocabulary=KNOWN):
    return [offer.text for offer in suggest_words(before, vocabulary)]


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("", ["SELECT", "ADD", "REPLACE"]),
        ("s", ["select", "show"]),
        ("S", ["SELECT", "SHOW"]),
        ("SHOW ", ["QUERIES", "STREAMS", "PLAN"]),
        ("show p", ["plan"]),
        ("HELP; ta", ["tail"]),
        ("TAIL ", ["revenue", "`visits by hour`"]),
        ("TAIL v", ["`visits by hour`"]),
        ("TAIL `v", ["`visits by hour`"]),
        ("TAIL revenue ", ["FROM BEGINNING", "LIMIT", "FOR"]),
        ("TAIL revenue FROM ", ["BEGINNING", "NOW"]),
        ("TAIL revenue FOR 5 ", ["SECONDS"]),
        ("TAIL revenue LIMIT ", []),
        ("RESULTS revenue ", ["LIMIT"]),
        ("REMOVE revenue, ", ["revenue", "`visits by hour`"]),
        ("REMOVE revenue ", []),
        ("REPLACE revenue ", ["AS"]),
        ("EXPLAIN ", ["revenue", "`visits by hour`", "SELECT", "WITH"]),
        ("DESCRIBE p", ["purchases"]),
        ("ADD ", ["SELECT", "WITH"]),
        ("SELECT * FROM ", ["purchases", "ads", "TUMBLE", "HOP", "SESSION", "SLIDING"]),
        ("SELECT * FROM t", ["tumble"]),
        ("SELECT * FROM TUMBLE(", ["purchases", "ads", "SELECT"]),
        ("SELECT pr", ["price"]),
        ("SELECT cos", ["cost"]),
        ("SELECT cost FROM purchases WHERE u", ["user_id", "using", "union all"]),
        ("SELECT x. FROM", []),
        ("SELECT * FROM purchases AS p WHERE p.", ["user_id", "price", "time", "window_start", "window_end"]),
        ("SELECT * FROM TUMBLE(ads, '1 second') a WHERE a.c", ["cost"]),
        ("ADD SELECT MEDI", ["MEDIAN"]),
        ("ADD SELECT medi", ["median"]),
        ("SELECT a AS ", []),
        ("SELECT 'pr", []),
        ("SELECT 'pr'", []),
        ("SELECT a -- pr", []),
        ("SELECT a /* pr */", []),
        ("SELECT 1", []),
        ("FROBNICATE ", []),
    ],
)
def test_offers(before, first):
    assert offered(before)[: max(1, len(first))] == first


def test_columns_are_those_of_the_streams_that_are_read():
    columns = offered("SELECT cost FROM ads WHERE ")
    assert "cost" in columns
    assert "price" not in columns
    assert {"cost", "price"} <= set(offered("SELECT "))


@given(st.text(alphabet="SELCTaf .,()'\"`;-/*\n1", max_size=25))
def test_whatever_is_typed_something_or_nothing_is_offered(before: str):
    for offer in suggest_words(before, KNOWN):
        assert offer.prefix_length <= len(before)
        assert offer.text
    assert all(before[token.start : token.end] == token.text and kind for token, kind in classify_tokens(before, KNOWN))


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("SHOW QUERIES;", True),
        ("SHOW QUERIES; ", True),
        ("SHOW QUERIES", False),
        ("SHOW QUERIES; SHOW", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1; -- done", False),
        ("help", True),
        (" quit ", True),
        ("\\q", True),
        ("helpless", False),
    ],
)
def test_enter_runs_what_is_complete(text, complete):
    assert is_complete(text) == complete


def test_history_is_where_state_belongs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert history_path() == tmp_path / "state" / "headrace" / "history"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "headrace" / "history"


def test_history_is_for_its_owner(tmp_path):
    path = tmp_path / "deep" / "history"
    history = open_history(path)
    history.store_string("SHOW\nQUERIES;")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(open_history(path).load_history_strings()) == ["SHOW\nQUERIES;"]


def test_without_a_place_nothing_is_remembered(tmp_path):
    (tmp_path / "file").touch()
    assert isinstance(open_history(tmp_path / "file" / "history"), InMemoryHistory)


class Slow:
    """A target that counts how often it is asked, and may not answer."""

    asked = 0
    gone = False

    def streams(self):
        self.asked += 1
        if self.gone:
            raise SessionError("gone")
        return []

    def queries(self):
        return []


def test_names_are_not_asked_for_with_every_key():
    now, target = [0.0], Slow()
    names = NameCache(target, lambda: now[0])
    for _ in range(5):
        names.load()
    assert target.asked == 1
    now[0] = 3.0
    names.load()
    assert target.asked == 2
    names.invalidate()
    target.gone = True
    assert names.load() == Vocabulary()
    assert target.asked == 3


@pytest.fixture
def target():
    with embedded_target() as (found, _):
        found.add("SELECT k FROM t", "keys")
        yield found


def test_completions_of_a_target(target):
    completer = NameCompleter(NameCache(target))

    def completions(text, *, tab):
        found = completer.get_completions(Document(text), CompleteEvent(completion_requested=tab))
        return [(one.text, one.start_position, one.display_meta_text) for one in found]

    assert completions("TAIL k", tab=False) == [("keys", -1, "query")]
    assert completions("TAIL ", tab=False) == []
    assert completions("TAIL ", tab=True) == [("keys", 0, "query")]
    assert completions("SELECT k FROM t", tab=False)[0] == ("t", -1, "stream")


def test_colors(target):
    names = NameCache(target)
    names.load()
    line = SyntaxLexer(names).lex_document(Document("SELECT sum(v), 'a\nb' FROM t -- x"))
    assert [part for part in line(0) if part[0]] == [
        ("class:keyword", "SELECT"),
        ("class:function", "sum"),
        ("class:sign", "("),
        ("class:name", "v"),
        ("class:sign", ")"),
        ("class:sign", ","),
        ("class:text", "'a"),
    ]
    assert [part for part in line(1) if part[0]] == [
        ("class:text", "b'"),
        ("class:keyword", "FROM"),
        ("class:stream", "t"),
        ("class:comment", "-- x"),
    ]
    assert line(7) == []


class Conversation:
    """Keys in, outcomes and errors out."""

    def __init__(self, target, keys, monkeypatch=None):
        self.outcomes, self.errors = [], []
        self.history = InMemoryHistory()
        names = NameCache(target)
        with create_pipe_input() as typed:
            typed.send_text(keys)
            session = make_prompt_session(names, self.history, input=typed, output=DummyOutput())
            run_prompt_loop(session, StatementRunner(target), self, names, self.errors.append)

    def show(self, outcome):
        self.outcomes.append(outcome)
        if isinstance(outcome, FollowedQuery):
            raise KeyboardInterrupt


END, CANCEL, ENTER, ALT_ENTER = "\x04", "\x03", "\r", "\x1b\r"


def test_a_conversation(target):
    found = Conversation(target, f"ADD SELECT v{ENTER}FROM t AS q;{ENTER}help{ENTER}{END}")
    assert [type(one) for one in found.outcomes] == [QueryChanged, UsageList]
    assert target.query("q").sql == "SELECT v\nFROM t"
    assert list(found.history.get_strings()) == ["ADD SELECT v\nFROM t AS q;", "help"]


def test_cancelled_input_is_not_done(target):
    found = Conversation(target, f"REMOVE keys;{CANCEL}{ENTER}HELP;{ENTER}{END}")
    assert [type(one) for one in found.outcomes] == [UsageList]
    assert [query.name for query in target.queries()] == ["keys"]


def test_alt_enter_begins_a_line(target):
    found = Conversation(target, f"HELP;{ALT_ENTER}HELP;{ENTER}{END}")
    assert list(found.history.get_strings()) == ["HELP;\nHELP;"]
    assert len(found.outcomes) == 2


def test_it_goes_on_after_an_error(target):
    found = Conversation(target, f"FROBNICATE; HELP;{ENTER}HELP;{ENTER}{END}")
    assert [error.message for error in found.errors] == ["unknown statement 'FROBNICATE'"]
    assert [type(one) for one in found.outcomes] == [UsageList]


def test_interrupting_a_select_removes_it(target):
    found = Conversation(target, f"SELECT v FROM t;{ENTER}HELP;{ENTER}{END}")
    assert [error.message for error in found.errors] == ["interrupted"]
    assert isinstance(found.outcomes[-1], UsageList)
    assert [query.name for query in target.queries()] == ["keys"]


def test_quit(target):
    found = Conversation(target, f"QUIT; HELP;{ENTER}")
    assert found.outcomes == found.errors == []
    assert Conversation(target, f"\\q{ENTER}").outcomes == []
