"""Find the Spark that is running, or start one; what the user configured comes first, and settings of headrace are defaults.

The order, from the strongest: `Session(master=…, spark_config=…)`; spark-submit, `PYSPARK_SUBMIT_ARGS` and spark-defaults.conf;
the defaults of headrace below; those of Spark. In `spark-submit` and `pyspark`, and wherever a SparkSession is active, that one
is used as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from headrace.errors import SessionError

_CONNECT_HINT = "pip install 'headrace[connect]'"
_LOG_FILE = Path(__file__).parent / "log4j2.properties"
_LOG_OPTION = f"-Dlog4j2.configurationFile={_LOG_FILE.as_uri()}"
# The JVM only schedules, so C1 suffices: a second compilation takes cores from the workers. VFORK because Hadoop forks chmod for
# every log file.
_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -Djdk.lang.Process.launchMechanism=VFORK"
# An executor mostly passes bytes between workers. The optimizing compiler (C2) waits until code has run ten times as often as by
# default: an executor starts with about half of the CPU time. Jobs of the JVM itself still get C2; with C1 alone, a sort took
# half as much again (docs/performance.md). A JVM ignores those that it does not know.
_EXECUTOR_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

# For any master. Compression and the settings of Spark SQL stay those of the cluster.
CLUSTER_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.executor.extraJavaOptions": _EXECUTOR_OPTIONS,
    "spark.python.unix.domain.socket.enabled": "true",  # over TCP, small messages of a task were sometimes delayed by 40 ms
    # An executor that ran most map tasks of a short job would get its reduce tasks, too, one after the other.
    "spark.shuffle.reduceLocality.enabled": "false",
}
# For a local master: on the loopback interface, without a web page, tuned for small jobs in one process.
SPARK_SETTINGS: Mapping[str, str] = {
    **CLUSTER_SETTINGS,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.shuffle.compress": "false",
}


# Workers need the same large arrays in every batch. By default the allocator returns them to the system each time, and the page
# faults of the next allocation took a quarter of a batch with 1,000 queries (docs/performance.md).
ALLOCATOR_SETTINGS: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


# Spark's own defaults, for jobs that the JVM executes: the baseline in benchmarks.
STOCK_SETTINGS: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": _LOG_OPTION,
    "spark.sql.adaptive.enabled": "true",
    "spark.shuffle.compress": "true",
}

_launch_settings: set[str] = set()
"""Settings that the JVM of this process was started with; it keeps them as properties when its Spark is stopped."""
_lock = Lock()
_users: dict[str, int] = {}
"""How many sessions use each Spark application that headrace started."""


def is_local_master(master: str) -> bool:
    """Return whether a master runs its tasks in the process of the driver; `local-cluster[…]` does not."""
    return master == "local" or master.startswith("local[")


def acquire_spark(master: str | None, config: Mapping[str, str]) -> SparkSession:
    """Return the running Spark, or start one; `release_spark` ends the use.

    Raises SessionError if a running Spark has another master or other settings than those asked for.
    """
    with _lock:
        spark = find_running_spark()
        if spark is None:
            spark = start_spark(master, config)
            _users[_get_application(spark)] = 0
        else:
            check_agreement(spark, master, config)
        application = _get_application(spark)
        if application in _users:
            _users[application] += 1
        return spark


def release_spark(spark: SparkSession) -> None:
    """End a use of Spark: stop it if headrace started it, and no other session uses it."""
    with _lock:
        application = _get_application(spark)
        if application not in _users:
            return
        _users[application] -= 1
        if _users[application] == 0:
            del _users[application]
            spark.stop()


def find_running_spark() -> SparkSession | None:
    """Return the SparkSession of this process, such as that of a notebook or of `pyspark`; None if none is running."""
    context = SparkContext._active_spark_context  # noqa: SLF001  there is no public way to ask without starting one
    if context is None or context._jsc is None:  # noqa: SLF001
        return None
    return SparkSession.builder.getOrCreate()


def is_remote_chosen() -> bool:
    """Return whether this process uses Spark Connect: a session of it is running, or SPARK_REMOTE names a server."""
    is_named = bool(os.environ.get("SPARK_REMOTE")) and SparkContext._active_spark_context is None  # noqa: SLF001
    return is_remote() or is_named


def find_remote_session(spark: Any, master: str | None, config: Mapping[str, str]) -> Any:
    """Return the Spark Connect session that is given or running; None if there is none, or a Spark session is given.

    Raises SessionError if a master or settings are asked for: they are those of the server.
    """
    if spark is None and is_remote_chosen():
        _check_connect_packages()
        spark = SparkSession.builder.getOrCreate()
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    if master is not None or config:
        raise SessionError(
            "the master and the settings of Spark Connect are those of its server",
            hint="leave out `master` and `spark_config`, or set them where the server is started",
        )
    return spark


def _check_connect_packages() -> None:
    """Raise SessionError if packages of Spark Connect are missing.

    pyspark would end a program without a file (`python -c`, a pipe) with exit code 0, because it takes it for its own doctests.
    """
    try:
        import pyspark.sql.connect.session  # noqa: F401, PLC0415  to find out whether it can be imported
    except (ImportError, SystemExit) as error:
        raise SessionError(
            "Spark Connect needs packages that are not installed", detail=str(error.__context__ or error), hint=_CONNECT_HINT
        ) from error


def check_agreement(spark: SparkSession, master: str | None, config: Mapping[str, str]) -> None:
    """Raise SessionError if a running Spark differs from the master or the settings asked for: it cannot change them."""
    running = str(spark.sparkContext.master)
    if master is not None and master != running:
        raise SessionError(
            f"Spark is running with master '{running}', not '{master}'",
            hint="leave out `master` to use the running Spark, or stop that one first (spark.stop())",
        )
    actual = spark.sparkContext.getConf()
    for name, value in config.items():
        if actual.get(name) != value and spark.conf.get(name, None) != value:
            raise SessionError(
                f"Spark is running with {name} = {actual.get(name)}, not {value}",
                hint="set it where Spark is started (spark-submit --conf, SparkSession.builder.config), or stop that Spark first",
            )


def start_spark(master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark (5–10 s) with these settings and the defaults of headrace.

    Without `master` it is that of spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf, else local[*].
    Raises SessionError if Java is not installed, or Spark does not start.
    """
    settings = launch_jvm(master, config or {})
    conf: Any = SparkConf()  # the properties of the JVM: spark-defaults.conf, and what spark-submit was given
    for name in _launch_settings - settings.keys():
        conf._jconf.remove(name)  # noqa: SLF001  of a Spark that has ended
    conf.setAll(list(settings.items()))
    _set_defaults(conf, settings)
    _choose_python(conf)
    try:
        SparkContext(conf=conf)
    except Py4JJavaError as error:
        raise SessionError(
            "Spark does not start", detail=str(error.java_exception).strip(), hint="see the master and the settings of Spark"
        ) from error
    return SparkSession.builder.getOrCreate()


def launch_jvm(master: str | None, config: Mapping[str, str]) -> dict[str, str]:
    """Start the JVM of the driver with these settings, some of which take effect only here; a JVM that exists is used.

    Return the settings with the master. Raises SessionError if Java is not installed.
    """
    _check_java()
    settings = dict(config)
    if master is not None:
        settings["spark.master"] = master
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # noqa: SLF001
        _launch_settings.update(settings)
    with _launch_environment(settings):
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))  # noqa: SLF001
    return settings


def _check_java() -> None:
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise SessionError(
            "Java is not installed, and Spark needs it",
            hint="install a JDK ≥ 17 ('apt-get install openjdk-17-jre-headless', 'brew install openjdk@17'), or set JAVA_HOME",
        )


@contextlib.contextmanager
def _launch_environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set the environment of a JVM that starts in the block, unless the user has set it; other processes do not inherit it.

    Java options of the user follow those of SPARK_SUBMIT_OPTS, so that they win.
    """
    defaults = {}
    if "spark.driver.extraJavaOptions" not in settings and os.environ.get("SPARK_SUBMIT_OPTS") is None:
        defaults["SPARK_SUBMIT_OPTS"] = _JVM_OPTIONS if _has_log_configuration() else f"{_JVM_OPTIONS} {_LOG_OPTION}"
    if is_local_master(settings.get("spark.master", "" if _has_submit_configuration() else "local")):
        defaults["SPARK_LOCAL_IP"] = "127.0.0.1"
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _find_configuration_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")


def _has_submit_configuration() -> bool:
    """Return whether spark-submit or a file may name the master, which is known only after the JVM has started."""
    is_submitted = any(os.environ.get(name) for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"))
    return is_submitted or (_find_configuration_folder() / "spark-defaults.conf").exists()


def _has_log_configuration() -> bool:
    """Return whether the user configures the log; or the file of headrace is in a zip, where Java does not find it."""
    return not _LOG_FILE.exists() or any(_find_configuration_folder().glob("log4j2.*"))


def _set_defaults(conf: SparkConf, settings: Mapping[str, str]) -> None:
    """Set the defaults of headrace where the user has set nothing."""
    conf.setIfMissing("spark.master", "local[*]")
    if conf.get("spark.app.name") in {None, "pyspark-shell"}:  # the name that Spark gives if the user gives none
        conf.setAppName("headrace")
    is_local = is_local_master(str(conf.get("spark.master")))
    if not _has_submit_configuration() and "spark.ui.showConsoleProgress" not in settings:
        conf.set("spark.ui.showConsoleProgress", "false")  # a shell, for which Spark takes this process, has a progress bar
    if not _has_log_configuration():
        conf.setIfMissing("spark.log.level", "ERROR")
    for name, value in (SPARK_SETTINGS if is_local else CLUSTER_SETTINGS).items():
        conf.setIfMissing(name, value)
    for name, value in ALLOCATOR_SETTINGS.items():
        if is_local:
            os.environ.setdefault(name, value)  # inherited by the workers of a local master
        conf.setIfMissing(f"spark.executorEnv.{name}", value)


def _choose_python(conf: SparkConf) -> None:
    """Let workers use the Python that the user configured, else the path of this one."""
    os.environ.setdefault("PYSPARK_PYTHON", conf.get("spark.pyspark.python") or sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def format_setting(value: Any) -> str:
    """Return a setting as Spark spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _get_application(spark: Any) -> str:
    return str(spark.sparkContext.applicationId)
