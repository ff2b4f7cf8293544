"""The names of the package: `dir` and completion list all of them, before and after they are loaded, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import headrace as hr

COMPLETE = """
import rlcompleter, sys
import headrace
completer = rlcompleter.Completer({"headrace": headrace})
listed, loaded = dir(headrace), sorted(name for name in sys.modules if name.startswith("headrace."))
found = []
while (text := completer.complete("headrace.", len(found))) is not None:
    found.append(text.removeprefix("headrace.").rstrip("()"))
print(listed == dir(headrace), loaded, sorted(found))
"""

LOAD = """
import sys
import headrace.cli, headrace.cli.session_file, headrace.client, headrace.connectors
headrace.cli.build_application()
print(sorted({"confluent_kafka", "numba", "pyspark"} & set(sys.modules)), headrace.KafkaSource is headrace.connectors.KafkaSource)
"""


def test_dir_lists_public_names_and_module_attributes_only():
    listed = dir(hr)
    assert listed == sorted(set(listed))
    assert set(hr.__all__) <= set(listed)
    assert all(name.startswith("__") and name.endswith("__") for name in set(listed) - set(hr.__all__))
    assert {"__doc__", "__file__", "__name__", "__version__"} <= set(listed)


def test_every_listed_name_can_be_loaded():
    for name in hr.__all__:
        assert getattr(hr, name) is not None
    assert set(dir(hr)) >= set(hr.__all__)


def test_completion_in_a_new_interpreter_offers_names_that_are_not_loaded_yet():
    run = subprocess.run([sys.executable, "-c", COMPLETE], capture_output=True, text=True, check=True)
    public = sorted(name for name in hr.__all__ if not name.startswith("_"))
    assert run.stdout.strip() == f"True [] {public}"


def test_a_client_and_the_command_line_load_neither_kernels_nor_clients_of_brokers():
    run = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] True"
