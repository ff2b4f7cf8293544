"""The command line as a whole: help, version, exit codes."""

from __future__ import annotations

import pytest

from headrace.cli import COMMANDS, build_application, main


def test_help_lists_every_command(headrace):
    said = headrace("--help")
    assert said.code == 0
    assert all(name in said.out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(headrace, command):
    said = headrace(command, "--help")
    assert said.code == 0
    assert "--json" in said.out or "COMMAND" in said.out


def test_version(headrace):
    assert headrace("--version").out.startswith("headrace 0.")


def test_wrong_usage_is_2(headrace):
    assert headrace("run").code == 2
    assert headrace("nonsense").code == 2
    assert headrace("run", "x.toml", "--backend", "flink").code == 2


def test_errors_have_no_traceback(headrace, tmp_path):
    said = headrace("run", tmp_path / "none.toml", "--once", "--backend", "local")
    assert said.code == 1
    assert said.out == ""
    assert "error: cannot read session file" in said.err
    assert "none.toml" in said.err
    assert "Traceback" not in said.err


def test_interrupt_is_130(monkeypatch):
    def interrupted(wanted):
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.build_application", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main(["demo"])
    assert stopped.value.code == 130


def test_only_the_command_asked_for_is_loaded():
    modules = {command.name: command.callback.__module__ for command in build_application("explain").registered_commands}
    assert modules.pop("explain") == "headrace.cli.explain"
    assert set(modules.values()) == {"headrace.cli"}
    assert modules.keys() | {"explain"} == COMMANDS.keys()


def test_spark_without_java_says_what_to_install(headrace, session_file, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    said = headrace("run", session_file(), "--once")
    assert said.code == 1
    assert "Java not found in JAVA_HOME=/nowhere" in said.err
    assert "openjdk-17-jre-headless" in said.err
