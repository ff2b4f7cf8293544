// The editor: CodeMirror with headrace's SQL. It is in a shadow tree, where its styles are adopted style sheets, so that the
// page's policy need not allow inline styles.

import { completions } from "/page/js/completion.js";
import { AGGREGATES, FUNCTIONS, KEYWORDS, TYPES, WINDOWS } from "/page/js/language.js";
import * as cm from "/page/vendor/codemirror.js";

const lower = (words) => words.join(" ").toLowerCase();

const dialect = cm.SQLDialect.define({
  keywords: lower(KEYWORDS),
  types: lower(TYPES),
  builtin: lower([
    ...WINDOWS.map(([name]) => name),
    ...AGGREGATES,
    ...FUNCTIONS,
    "window",
    "session_window",
    "window_start",
    "window_end",
  ]),
  identifierQuotes: "`",
  doubleQuotedStrings: true,
  backslashEscapes: true,
  operatorChars: "*+-%<>!=&|~^/",
});

const colours = cm.HighlightStyle.define([
  { tag: cm.tags.keyword, color: "var(--code-keyword)", fontWeight: "600" },
  { tag: [cm.tags.string, cm.tags.special(cm.tags.string)], color: "var(--code-string)" },
  { tag: [cm.tags.number, cm.tags.bool, cm.tags.null], color: "var(--code-number)" },
  { tag: cm.tags.typeName, color: "var(--code-type)" },
  { tag: cm.tags.standard(cm.tags.name), color: "var(--code-function)" },
  { tag: [cm.tags.lineComment, cm.tags.blockComment], color: "var(--dim)", fontStyle: "italic" },
]);

const looks = cm.EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "transparent" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "none" },
  ".cm-activeLine": { backgroundColor: "var(--active-line)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--selection)",
  },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "var(--selection)", color: "inherit" },
  ".cm-placeholder": { color: "var(--faint)" },
  ".cm-tooltip": {
    backgroundColor: "var(--raised)",
    color: "var(--text)",
    border: "1px solid var(--line)",
    borderRadius: "6px",
    boxShadow: "var(--shadow)",
    fontFamily: "var(--sans)",
    fontSize: "12px",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", maxHeight: "14em" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "2px 8px", lineHeight: "1.5" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "inherit", opacity: "0.65", fontStyle: "normal" },
  ".cm-lintRange-error": {
    backgroundImage: "none",
    textDecoration: "underline wavy var(--bad) 1.5px",
    textUnderlineOffset: "3px",
  },
  ".cm-lintPoint-error:after": { borderBottomColor: "var(--bad)" },
  ".cm-diagnostic": { padding: "5px 10px", whiteSpace: "pre-wrap" },
  ".cm-diagnostic-error": { borderLeft: "3px solid var(--bad)" },
  ".cm-gutter-lint": { width: "16px" },
  ".cm-gutter-lint .cm-gutterElement": { padding: "0 2px" },
  ".cm-lint-marker": { width: "11px", height: "11px" },
  ".cm-lint-marker-error": {
    content: "none",
    backgroundColor: "var(--bad)",
    borderRadius: "50%",
    marginTop: "5px",
    width: "8px",
    height: "8px",
  },
});

const quietly = cm.Annotation.define();

/**
 * Replaces a selection without the browser, which would keep its formatting in a style attribute that the page's policy
 * forbids.
 */
const overwriting = cm.EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { from, to, empty } = view.state.selection.main;
    if (event.inputType !== "insertText" || !event.data || empty || view.composing) return false;
    const insert = () => view.state.update(view.state.replaceSelection(event.data), { userEvent: "input.type" });
    const handlers = view.state.facet(cm.EditorView.inputHandler);
    if (!handlers.some((handle) => handle(view, from, to, event.data, insert))) view.dispatch(insert());
    event.preventDefault();
    return true;
  },
});

/** Returns the range of an error: the word at its line and column, or the whole text if it has no place. */
export function rangeOf(doc, line, column) {
  if (line < 1 || line > doc.lines) return { from: 0, to: doc.length };
  const { from, to, text } = doc.line(line);
  const start = Math.min(from + column - 1, to);
  const word = /^(?:`[^`]*`|'[^']*'?|[\w.]+|\S)/.exec(text.slice(start - from))?.[0] ?? "";
  return word ? { from: start, to: start + word.length } : { from: Math.max(from, start - 1), to: start };
}

/** The editor in an element; `changed(text)` is called when the user changes the text, `run()` on Ctrl+Enter. */
export class Editor {
  constructor(element, { streams, changed, run }) {
    const root = element.attachShadow({ mode: "open", delegatesFocus: true });
    const runKey = { key: "Mod-Enter", run: () => (run(), true) };
    this.view = new cm.EditorView({
      parent: root,
      root,
      state: cm.EditorState.create({
        extensions: [
          cm.Prec.highest(cm.keymap.of([runKey])),
          cm.lineNumbers(),
          cm.lintGutter(),
          cm.history(),
          cm.drawSelection(),
          cm.highlightActiveLine(),
          cm.bracketMatching(),
          cm.closeBrackets(),
          cm.EditorView.lineWrapping,
          cm.autocompletion({ override: [completions(streams)], icons: false }),
          cm.keymap.of([...cm.closeBracketsKeymap, ...cm.defaultKeymap, ...cm.historyKeymap, ...cm.completionKeymap]),
          dialect.extension,
          overwriting,
          cm.syntaxHighlighting(colours),
          looks,
          cm.placeholder("SELECT … FROM TUMBLE(stream, '1 second')"),
          cm.EditorView.contentAttributes.of({ "aria-label": "SQL of the query", spellcheck: "false" }),
          cm.EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((one) => one.annotation(quietly))) changed(this.text);
          }),
        ],
      }),
    });
  }

  get text() {
    return this.view.state.doc.toString();
  }

  /** Sets the text without calling `changed`. */
  show(text) {
    if (text === this.text) return;
    this.view.dispatch({
      changes: { from: 0, to: this.view.state.doc.length, insert: text },
      selection: { anchor: text.length },
      annotations: quietly.of(true),
    });
    this.clear();
  }

  /** Inserts a text at the cursor. */
  insert(text) {
    this.view.dispatch(this.view.state.replaceSelection(text));
    this.focus();
  }

  /** Marks a problem at its place. */
  markProblem({ message, detail, hint, line, column }) {
    const range = rangeOf(this.view.state.doc, line, column);
    const said = [message, detail && `detail: ${detail}`, hint && `hint: ${hint}`].filter(Boolean).join("\n");
    this.view.dispatch(cm.setDiagnostics(this.view.state, [{ ...range, severity: "error", message: said }]));
  }

  /** Removes the mark. */
  clear() {
    this.view.dispatch(cm.setDiagnostics(this.view.state, []));
  }

  focus() {
    this.view.focus();
  }
}
