"""The shell: statements typed at a prompt, or read from a script, done on a session of its own or on a service.

A text becomes tokens and pieces that end with `;` (`scan`), a piece becomes a statement (`statements`, `parse`), and a statement
is done on a `Target` (`target`), which is a session in this process (`embedded`) or a service (`remote`). What comes of it are
values (`run`): they are drawn for people (`show`, `tail`) or written as JSON, one object a line (`json_lines`). `script` and
`interactive` are the two ways in; `complete` is what the prompt (`prompt`) knows of the language. `meaning` says what a query
would share, `places` where in the typed text an error is.

Pure: scan, statements, parse, places, complete, meaning. Only `prompt` knows prompt_toolkit.
"""
