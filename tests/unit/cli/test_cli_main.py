"""The command line as a whole: help, version, exit codes."""

from __future__ import annotations

import pytest

from headrace.cli import COMMANDS, build_application, main
from headrace.cli.meter import summarize_values
from headrace.cli.terminal import print_json, progress_console


def test_help_lists_every_command(headrace):
    result = headrace("--help")
    assert result.code == 0
    assert all(name in result.out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(headrace, command):
    result = headrace(command, "--help")
    assert result.code == 0
    assert "--json" in result.out or "COMMAND" in result.out


def test_version(headrace):
    assert headrace("--version").out.startswith("headrace 0.")


def test_wrong_usage_exits_with_2(headrace):
    assert headrace("run").code == 2
    assert headrace("nonsense").code == 2
    assert headrace("run", "x.toml", "--backend", "flink").code == 2


def test_errors_have_no_traceback(headrace, tmp_path):
    result = headrace("run", tmp_path / "none.toml", "--once", "--backend", "local")
    assert result.code == 1
    assert result.out == ""
    assert "error: cannot read session file" in result.err
    assert "none.toml" in result.err
    assert "Traceback" not in result.err


def test_an_interrupt_exits_with_130(monkeypatch):
    def raise_interrupt(wanted):
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.build_application", raise_interrupt)
    with pytest.raises(SystemExit) as stopped:
        main(["demo"])
    assert stopped.value.code == 130


def test_only_the_requested_command_is_loaded():
    modules = {command.name: command.callback.__module__ for command in build_application("explain").registered_commands}
    assert modules.pop("explain") == "headrace.cli.explain"
    assert set(modules.values()) == {"headrace.cli"}
    assert modules.keys() | {"explain"} == COMMANDS.keys()


@pytest.mark.parametrize("words", [("run", "--once"), ("sql", "--backend", "spark", "-c", "SHOW QUERIES")])
def test_spark_without_java_names_the_package_to_install(headrace, session_file, monkeypatch, words):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = headrace(words[0], session_file(), *words[1:])
    assert result.code == 1
    assert "Java not found in JAVA_HOME=/nowhere" in result.err
    assert "openjdk-17-jre-headless" in result.err


def test_progress_shows_brackets_as_they_are(capsys):
    progress_console(as_json=False).print("reading [bold] and data[1].csv")
    assert capsys.readouterr().out == "reading [bold] and data[1].csv\n"


def test_a_summary_has_the_median_the_95th_percentile_and_the_maximum():
    assert summarize_values([2.0, 1.0]) == {"median": 1.5, "p95": 2.0, "max": 2.0}
    assert summarize_values([float(n) for n in range(100)]) == {"median": 49.5, "p95": 95.0, "max": 99.0}
    assert summarize_values([]) is None


def test_json_is_printed_as_utf_8_without_nan(capsys: pytest.CaptureFixture[str]):
    print_json({"name": "größer"})
    assert '"name": "größer"' in capsys.readouterr().out
    with pytest.raises(ValueError, match="JSON"):
        print_json({"rate": float("nan")})
