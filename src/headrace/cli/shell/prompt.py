"""The prompt: many lines until `;`, history, completion, colors. What was typed is done by `script.run_piece`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.styles import Style

from headrace.cli.shell.complete import Vocabulary, kinds, offers
from headrace.cli.shell.scan import Piece, split
from headrace.cli.shell.target import Target
from headrace.errors import HeadraceError

PROMPT = "headrace> "
_FRESH_SECONDS = 2.0
_ALONE = {"help": "HELP", "?": "HELP", "quit": "QUIT", "exit": "QUIT", "\\q": "QUIT"}  # need no `;`
_STYLE = Style.from_dict({
    "prompt": "bold ansicyan", "keyword": "bold ansiblue", "function": "ansimagenta", "text": "ansigreen", "number": "ansicyan",
    "comment": "italic ansibrightblack", "stream": "bold",
})  # fmt: skip


def history_file() -> Path:
    """Return where lines are remembered from one shell to the next."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "headrace" / "history"


def opened_history(path: Path) -> History:
    """Return a history in a file that only its owner can read, or one that is forgotten where there cannot be a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("ab"):
            return FileHistory(str(path))
    except OSError:
        return InMemoryHistory()


def is_complete(text: str) -> bool:
    """Tell whether Enter runs it: nothing but complete statements, or a word that needs no `;`."""
    pieces, rest = split(text)
    return not text.strip() or _alone(text) is not None or (bool(pieces) and not rest.tokens)


def pieces_of(text: str) -> list[Piece]:
    """Return the statements of a text that is complete."""
    return split(_alone(text) or text)[0]


def _alone(text: str) -> str | None:
    word = _ALONE.get(text.strip().lower())
    return None if word is None else f"{word};"


class Names:
    """The vocabulary of a target, asked for at most every few seconds, and kept if it does not answer."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is asked before the first call."""
        self._target, self._clock, self._lock = target, clock, threading.Lock()
        self._asked, self.known = -_FRESH_SECONDS, Vocabulary()

    def fresh(self) -> Vocabulary:
        """Return the names there are now, or were a moment ago."""
        with self._lock:
            if self._clock() - self._asked >= _FRESH_SECONDS:
                self._asked = self._clock()
                try:
                    streams = {one.name: tuple(one.columns) for one in self._target.streams()}
                    self.known = Vocabulary(streams, tuple(query.name for query in self._target.queries()))
                except HeadraceError:
                    pass
            return self.known

    def forget(self) -> None:
        """Ask anew the next time: a statement may have changed them."""
        with self._lock:
            self._asked = -_FRESH_SECONDS


class NameCompleter(Completer):
    """Offers what may come next; without Tab only where a word was begun."""

    def __init__(self, names: Names) -> None:
        """Ask for names when somebody types."""
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """See `Completer`."""
        for offer in offers(document.text_before_cursor, self._names.fresh()):
            if offer.replaces or complete_event.completion_requested:
                yield Completion(offer.text, -offer.replaces, display_meta=offer.kind)


class Colors(Lexer):
    """Colors what is typed as the shell understands it."""

    def __init__(self, names: Names) -> None:
        """Use the names that are known; none are asked for."""
        self._names = names

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """See `Lexer`."""
        styled: StyleAndTextTuples = []
        at = 0
        for token, kind in kinds(document.text, self._names.known):
            styled += [("", document.text[at : token.start]), (f"class:{kind}", document.text[token.start : token.end])]
            at = token.end
        styled.append(("", document.text[at:]))
        lines = _lines(styled)
        return lambda number: lines[number] if number < len(lines) else []


def _lines(styled: StyleAndTextTuples) -> list[StyleAndTextTuples]:
    """Cut at the ends of lines; a token may go over several."""
    lines: list[StyleAndTextTuples] = [[]]
    for style, text, *_ in styled:
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
            lines[-1].append((style, part))
    return lines


def bindings() -> KeyBindings:
    """Return the keys: Enter runs what is complete and begins a line otherwise; with Alt it always begins a line."""
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


def prompt_session(names: Names, history: History, **terminal: Any) -> PromptSession[str]:
    """Return the prompt; `terminal` is for tests: an input and an output of prompt_toolkit."""
    return PromptSession(
        [("class:prompt", PROMPT)],
        multiline=True,
        history=history,
        completer=ThreadedCompleter(NameCompleter(names)),
        complete_while_typing=True,
        lexer=Colors(names),
        style=_STYLE,
        include_default_pygments_style=False,
        key_bindings=bindings(),
        prompt_continuation=lambda width, *_: [("class:prompt", "… ".rjust(width))],
        **terminal,
    )
