// What the page's editor uses of CodeMirror; nothing else gets into the bundle.
export {
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
  snippetCompletion,
} from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { SQLDialect } from "@codemirror/lang-sql";
export { HighlightStyle, bracketMatching, syntaxHighlighting } from "@codemirror/language";
export { lintGutter, setDiagnostics } from "@codemirror/lint";
export { Annotation, EditorState, Prec } from "@codemirror/state";
export { EditorView, drawSelection, highlightActiveLine, keymap, lineNumbers, placeholder } from "@codemirror/view";
export { tags } from "@lezer/highlight";
