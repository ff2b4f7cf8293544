"""The SQL shell: runs statements from a prompt or a script on a session in this process or on a service.

`tokenizer` splits text into statements that end with `;`, `parser` parses them. `executor` runs a statement on a `ShellTarget`
(`target`), which is a session in this process (`embedded`) or a service (`remote`), and yields `outcomes`. `render` draws
outcomes on a terminal, or writes them as text or as JSON lines. `script` runs a list of statements, `prompt` an interactive loop
with `completion`. `open_target` chooses the target from the command line.

`parser` and `completion` are pure. Only `prompt` imports prompt_toolkit.
"""
