"""The shell reads and runs statements: typed at a prompt, or from a script on standard input or the command line.

The prompt takes multi-line input until `;` and has history, completion and syntax highlighting. The interactive loop ends with
Ctrl-D; an error ends a statement, not the shell.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.styles import Style

from headrace.cli.shell.completion import Vocabulary, classify_tokens, suggest_words
from headrace.cli.shell.executor import StatementRunner, place_in_source
from headrace.cli.shell.parser import (
    QuitStatement,
    SelectStatement,
    Statement,
    TailStatement,
    parse_statement,
)
from headrace.cli.shell.render import OutcomeView
from headrace.cli.shell.target import ShellTarget
from headrace.cli.shell.tokenizer import StatementText, split_statements
from headrace.errors import HeadraceError, SessionError


def read_statements(lines: Iterable[str]) -> Iterator[StatementText]:
    """Yield the statements of a script as soon as they are complete; text after the last `;` is a statement, too."""
    text, line, column = "", 1, 1
    for chunk in lines:
        text += chunk
        if ";" not in chunk:
            continue
        statements, rest = split_statements(text, line, column)
        yield from statements
        text, line, column = rest.text, rest.line, rest.column
    statements, rest = split_statements(text, line, column)
    yield from [*statements, *([rest] if rest.significant_tokens else [])]


def run_statement(
    source: StatementText, runner: StatementRunner, view: OutcomeView, check: Callable[[Statement], None] = lambda _: None
) -> bool:
    """Run a statement and show its outcomes; return False after QUIT. Errors have their place in the source text."""
    try:
        statement = parse_statement(source)
        check(statement)
        with contextlib.closing(runner.run(statement)) as outcomes:
            for outcome in outcomes:
                view.show(outcome)
    except HeadraceError as error:
        raise place_in_source(error, source) from error
    return not isinstance(statement, QuitStatement)


@dataclass(frozen=True, slots=True)
class ScriptRunner:
    """Runs a script; calls `on_error` with each error and its line. Without `keep_going` it stops at the first error."""

    runner: StatementRunner
    view: OutcomeView
    on_error: Callable[[HeadraceError, int], None]
    keep_going: bool = False
    allow_open_end: bool = False
    """Whether SELECT and TAIL may omit LIMIT and FOR; without an end, later statements would never run."""

    def run(self, sources: Iterable[StatementText]) -> bool:
        """Run all statements; return whether all succeeded."""
        succeeded = True
        for source in sources:
            try:
                if not run_statement(source, self.runner, self.view, self._check):
                    break
            except HeadraceError as error:
                succeeded = False
                self.on_error(error, source.line)
                if not self.keep_going:
                    break
        return succeeded

    def _check(self, statement: Statement) -> None:
        if isinstance(statement, TailStatement | SelectStatement) and statement.stop.is_open and not self.allow_open_end:
            keyword = "TAIL" if isinstance(statement, TailStatement) else "SELECT"
            raise SessionError(f"{keyword} in a script needs an end", hint="add LIMIT 10 or FOR 5 SECONDS")


class PromptSource(Protocol):
    """A source of typed text; raises KeyboardInterrupt for Ctrl-C and EOFError for Ctrl-D."""

    def prompt(self) -> str:
        """Return the typed text."""


def run_prompt_loop(
    prompt: PromptSource,
    runner: StatementRunner,
    view: OutcomeView,
    names: NameCache,
    report_error: Callable[[HeadraceError], None],
) -> None:
    """Read and run statements until QUIT or Ctrl-D; Ctrl-C discards the typed text, or stops the running statement."""
    while True:
        try:
            text = prompt.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if not all(run_statement(piece, runner, view) for piece in split_complete(text)):
                return
        except HeadraceError as error:
            report_error(error)
        except KeyboardInterrupt:
            report_error(HeadraceError("interrupted"))
        finally:
            names.invalidate()


PROMPT = "headrace> "
_CACHE_SECONDS = 2.0
_BARE_STATEMENTS = {"help": "HELP", "?": "HELP", "quit": "QUIT", "exit": "QUIT", "\\q": "QUIT"}  # need no `;`
_STYLE = Style.from_dict({
    "prompt": "bold ansicyan", "keyword": "bold ansiblue", "function": "ansimagenta", "text": "ansigreen", "number": "ansicyan",
    "comment": "italic ansibrightblack", "stream": "bold",
})  # fmt: skip


def history_path() -> Path:
    """Return the path of the history file."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "headrace" / "history"


def open_history(path: Path) -> History:
    """Return a history in a file that only its owner can read, or in memory if the file is not writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("ab"):
            return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()


def is_complete(text: str) -> bool:
    """Return whether Enter runs the text: it has only complete statements, or is a word that needs no `;`."""
    pieces, rest = split_statements(text)
    return not text.strip() or _expand_bare_statement(text) is not None or (bool(pieces) and not rest.tokens)


def split_complete(text: str) -> list[StatementText]:
    """Return the statements of a complete text."""
    return split_statements(_expand_bare_statement(text) or text)[0]


def _expand_bare_statement(text: str) -> str | None:
    word = _BARE_STATEMENTS.get(text.strip().lower())
    return None if word is None else f"{word};"


class NameCache:
    """A cache of the target's names: reloaded at most every few seconds, kept if the target does not answer."""

    def __init__(self, target: ShellTarget, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the target; names are loaded at the first use."""
        self._target, self._clock, self._lock = target, clock, threading.Lock()
        self._loaded_at, self.cached = -_CACHE_SECONDS, Vocabulary()

    def load(self) -> Vocabulary:
        """Return the names, at most a few seconds old."""
        with self._lock:
            if self._clock() - self._loaded_at >= _CACHE_SECONDS:
                self._loaded_at = self._clock()
                try:
                    streams = {stream.name: tuple(stream.columns) for stream in self._target.streams()}
                    self.cached = Vocabulary(streams, tuple(query.name for query in self._target.queries()))
                except HeadraceError:
                    pass
            return self.cached

    def invalidate(self) -> None:
        """Reload at the next use, because a statement may have changed the names."""
        with self._lock:
            self._loaded_at = -_CACHE_SECONDS


class NameCompleter(Completer):
    """Suggests the next word; without Tab only inside a word."""

    def __init__(self, names: NameCache) -> None:
        """Take the names, which are loaded while the user types."""
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """See `Completer`."""
        for suggestion in suggest_words(document.text_before_cursor, self._names.load()):
            if suggestion.prefix_length or complete_event.completion_requested:
                yield Completion(suggestion.text, -suggestion.prefix_length, display_meta=suggestion.kind)


class SyntaxLexer(Lexer):
    """Highlights typed text by the kinds of its tokens."""

    def __init__(self, names: NameCache) -> None:
        """Take the names; the lexer uses cached ones and never loads them."""
        self._names = names

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """See `Lexer`."""
        styled: StyleAndTextTuples = []
        end = 0
        for token, kind in classify_tokens(document.text, self._names.cached):
            styled += [("", document.text[end : token.start]), (f"class:{kind}", document.text[token.start : token.end])]
            end = token.end
        styled.append(("", document.text[end:]))
        lines = _split_lines(styled)
        return lambda number: lines[number] if number < len(lines) else []


def _split_lines(styled: StyleAndTextTuples) -> list[StyleAndTextTuples]:
    """Split styled text into lines; a token may span several."""
    lines: list[StyleAndTextTuples] = [[]]
    for style, text, *_ in styled:
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
            lines[-1].append((style, part))
    return lines


def make_key_bindings() -> KeyBindings:
    """Return the key bindings: Enter runs a complete text, otherwise starts a new line; Alt+Enter always starts a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def make_prompt_session(names: NameCache, history: History, **terminal: Any) -> PromptSession[str]:
    """Return the prompt; tests pass an input and an output of prompt_toolkit as `terminal`."""
    return PromptSession(
        [("class:prompt", PROMPT)],
        multiline=True,
        history=history,
        completer=ThreadedCompleter(NameCompleter(names)),
        complete_while_typing=True,
        lexer=SyntaxLexer(names),
        style=_STYLE,
        include_default_pygments_style=False,
        key_bindings=make_key_bindings(),
        prompt_continuation=lambda width, *_: [("class:prompt", "… ".rjust(width))],
        **terminal,
    )
