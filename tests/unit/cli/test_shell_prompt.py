"""The prompt without a terminal: Enter, completion, highlighting, history, errors."""

from __future__ import annotations

import stat
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from headrace.cli import sql
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

VOCABULARY = Vocabulary(
    {"purchases": ("user_id", "price", "time"), "ads": ("ad_id", "cost", "time")}, ("revenue", "visits by hour")
)


def suggest_texts(before, vocabulary=VOCABULARY):
    return [offer.text for offer in suggest_words(before, vocabulary)]


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("", ["SELECT", "ADD", "REPLACE"]),
        ("s", ["select", "show"]),
        ("S", ["SELECT", "SHOW"]),
        ("SHOW ", ["QUERIES", "STREAMS", "SINKS", "PLAN"]),
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
        ("ALTER ", ["QUERY"]),
        ("ALTER QUERY q ADD SINK ", ["WITH"]),
        ("FROBNICATE ", []),
    ],
)
def test_words_are_suggested(before, first):
    assert suggest_texts(before)[: max(1, len(first))] == first


def test_columns_are_suggested_for_the_streams_of_the_query():
    columns = suggest_texts("SELECT cost FROM ads WHERE ")
    assert "cost" in columns
    assert "price" not in columns
    assert {"cost", "price"} <= set(suggest_texts("SELECT "))


@given(st.text(alphabet="SELCTaf .,()'\"`;-/*\n1", max_size=25))
def test_suggestions_accept_any_text(before: str):
    for offer in suggest_words(before, VOCABULARY):
        assert offer.prefix_length <= len(before)
        assert offer.text
    assert all(before[token.start : token.end] == token.text and kind for token, kind in classify_tokens(before, VOCABULARY))


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
def test_enter_runs_complete_statements(text, complete):
    assert is_complete(text) == complete


def test_the_history_file_is_in_the_state_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert history_path() == tmp_path / "state" / "headrace" / "history"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert history_path() == tmp_path / ".local" / "state" / "headrace" / "history"


def test_the_history_file_is_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "deep" / "history"
    history = open_history(path)
    history.store_string("SHOW\nQUERIES;")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(open_history(path).load_history_strings()) == ["SHOW\nQUERIES;"]


def test_history_stays_in_memory_if_the_file_cannot_be_opened(tmp_path):
    (tmp_path / "file").touch()
    assert isinstance(open_history(tmp_path / "file" / "history"), InMemoryHistory)


class CountingTarget:
    """A target that counts its calls and fails if `gone` is set."""

    calls = 0
    gone = False

    def streams(self):
        self.calls += 1
        if self.gone:
            raise SessionError("gone")
        return []

    def queries(self):
        return []


def test_names_are_cached_between_keys():
    now, target = [0.0], CountingTarget()
    names = NameCache(target, lambda: now[0])
    for _ in range(5):
        names.load()
    assert target.calls == 1
    now[0] = 3.0
    names.load()
    assert target.calls == 2
    names.invalidate()
    target.gone = True
    assert names.load() == Vocabulary()
    assert target.calls == 3


@pytest.fixture
def target():
    with embedded_target() as (opened, _):
        opened.add("SELECT k FROM t", "keys")
        yield opened


def test_names_of_a_target_are_completed(target):
    completer = NameCompleter(NameCache(target))

    def complete(text, *, tab):
        suggestions = completer.get_completions(Document(text), CompleteEvent(completion_requested=tab))
        return [(suggestion.text, suggestion.start_position, suggestion.display_meta_text) for suggestion in suggestions]

    assert complete("TAIL k", tab=False) == [("keys", -1, "query")]
    assert complete("TAIL ", tab=False) == []
    assert complete("TAIL ", tab=True) == [("keys", 0, "query")]
    assert complete("SELECT k FROM t", tab=False)[0] == ("t", -1, "stream")


def test_tokens_are_highlighted(target):
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


class PromptRun:
    """Send keys to a prompt and record outcomes and errors."""

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


def test_statements_can_span_lines(target):
    prompt = PromptRun(target, f"ADD SELECT v{ENTER}FROM t AS q;{ENTER}help{ENTER}{END}")
    assert [type(outcome) for outcome in prompt.outcomes] == [QueryChanged, UsageList]
    assert target.query("q").sql == "SELECT v\nFROM t"
    assert list(prompt.history.get_strings()) == ["ADD SELECT v\nFROM t AS q;", "help"]


def test_the_command_greets_and_runs_the_prompt(target, monkeypatch, capsys):
    with create_pipe_input() as typed:
        typed.send_text(f"ADD SELECT v FROM t AS q;{ENTER}{END}")
        monkeypatch.setattr(sql, "make_prompt_session", partial(make_prompt_session, input=typed, output=DummyOutput()))
        monkeypatch.setattr(sql, "open_history", lambda _: InMemoryHistory())
        sql._run_interactive(sql.OpenedTarget(target, "a test"), StatementRunner(target), as_json=False)
    shown = capsys.readouterr().out
    assert target.query("q").sql == "SELECT v FROM t"
    assert all(text in shown for text in (": a test", "streams: t", "Statements end with ;", "HELP;"))


def test_cancelled_input_is_not_run(target):
    prompt = PromptRun(target, f"REMOVE keys;{CANCEL}{ENTER}HELP;{ENTER}{END}")
    assert [type(outcome) for outcome in prompt.outcomes] == [UsageList]
    assert [query.name for query in target.queries()] == ["keys"]


def test_alt_enter_starts_a_new_line(target):
    prompt = PromptRun(target, f"HELP;{ALT_ENTER}HELP;{ENTER}{END}")
    assert list(prompt.history.get_strings()) == ["HELP;\nHELP;"]
    assert len(prompt.outcomes) == 2


def test_the_prompt_continues_after_an_error(target):
    prompt = PromptRun(target, f"FROBNICATE; HELP;{ENTER}HELP;{ENTER}{END}")
    assert [error.message for error in prompt.errors] == ["unknown statement 'FROBNICATE'"]
    assert [type(outcome) for outcome in prompt.outcomes] == [UsageList]


def test_an_interrupted_select_is_removed(target):
    prompt = PromptRun(target, f"SELECT v FROM t;{ENTER}HELP;{ENTER}{END}")
    assert [error.message for error in prompt.errors] == ["interrupted"]
    assert isinstance(prompt.outcomes[-1], UsageList)
    assert [query.name for query in target.queries()] == ["keys"]


def test_quit_ends_the_prompt(target):
    prompt = PromptRun(target, f"QUIT; HELP;{ENTER}")
    assert prompt.outcomes == prompt.errors == []
    assert PromptRun(target, f"\\q{ENTER}").outcomes == []
