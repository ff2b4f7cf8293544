"""Options of Spark: a session file, and the command line before it."""

from __future__ import annotations

import pytest

from headrace.cli.session_file import SessionFile
from headrace.cli.spark_options import SparkOptions
from headrace.errors import HeadraceError

STREAM = '\n[streams.s]\npath = "x.csv"\ntime = "time"\n'


def load(tmp_path, text: str) -> SparkOptions:
    (tmp_path / "session.toml").write_text(text)
    return SessionFile.load(tmp_path / "session.toml", require_queries=False).spark


def test_a_file_has_a_table_for_spark(tmp_path):
    text = """
[spark]
master = "spark://host:7077"
exchange = "shuffle"
[spark.config]
"spark.executor.memory" = "4g"
spark.executor.cores = 2
spark.speculation = true
"""
    options = load(tmp_path, text + STREAM)
    assert options == SparkOptions(
        "spark://host:7077", {"spark.executor.memory": "4g", "spark.executor.cores": "2", "spark.speculation": "true"}, "shuffle"
    )
    stronger = options.override("yarn", ["spark.executor.cores=8", "spark.x=a=b"], None)
    assert stronger.to_arguments() == {
        "master": "yarn",
        "spark_config": {**options.config, "spark.executor.cores": "8", "spark.x": "a=b"},
        "exchange": "shuffle",
    }


def test_a_file_without_the_table_leaves_the_choice_to_spark(tmp_path):
    assert load(tmp_path, STREAM).to_arguments() == {"master": None, "spark_config": {}, "exchange": "auto"}
    assert load(tmp_path, 'master = "local[2]"' + STREAM).master == "local[2]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('master = "local[2]"\n[spark]\nmaster = "yarn"\n', r"key 'master' in .* is given twice, also in \[spark\]"),
        ("[spark]\ncores = 2\n", "unknown key 'spark.cores'"),
        ('[spark]\nconfig = {"spark.a" = [1]}\n', "key 'spark.config' in .* is invalid: 'spark.a' is not a string"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, text, message):
    with pytest.raises(HeadraceError, match=message):
        load(tmp_path, text + STREAM)


@pytest.mark.parametrize("text", ["spark.executor.memory", "=4g"])
def test_a_setting_needs_name_and_value(text):
    with pytest.raises(HeadraceError, match=f"invalid --conf '{text}'"):
        SparkOptions().override(None, [text], None)
