"""A Kafka broker on the loopback interface, for benchmarks and tests: one node in KRaft mode, in a process of its own.

Its jars come from the folder HEADRACE_KAFKA_LIBS if that is set, else from the cache of this user, which Maven fills once.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

with contextlib.suppress(ImportError):  # an extra; `load_library` says so
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourceType,
    )

KAFKA_VERSION = "4.1.0"
_START_SECONDS = 60.0
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>kafka-broker</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
<dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.24.3</version></dependency>
</dependencies></project>
"""
_LOG_SETTINGS = """status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:kafka.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m %c%n
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "broker.session.timeout.ms": "2000",  # a broker that was killed registers again after this time
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.initial.task.delay.ms": "1000",
    "log.segment.delete.delay.ms": "100",
    "file.delete.delay.ms": "100",
}
# A short life on a busy machine: the second compiler and the parallel collectors cost more than they save.
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LARGE_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")  # as Kafka starts it, for benchmarks


def find_kafka_libs() -> Path:
    """Return the folder of the jars of Kafka; Maven fills it on the first call on a machine, which takes about 40 s."""
    given = os.environ.get("HEADRACE_KAFKA_LIBS")
    if given:
        return Path(given)
    libs = Path.home() / ".cache" / "headrace" / f"kafka-{KAFKA_VERSION}"
    libs.parent.mkdir(parents=True, exist_ok=True)
    with (libs.parent / f"{libs.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libs.is_dir():
            _copy_jars(libs)
    return libs


def _copy_jars(libs: Path) -> None:
    work = libs.with_name(f"{libs.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "pom.xml").write_text(_POM)
    arguments = [
        "mvn",
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={work / 'libs'}",
    ]
    subprocess.run(arguments, cwd=work, check=True, timeout=600)  # noqa: S603  our own pom
    (work / "libs").rename(libs)
    shutil.rmtree(work)


def find_free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nothing uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


class KafkaBroker:
    """A broker that keeps its port and its data when it is stopped or killed and started again."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, java_options: Sequence[str] = SMALL_JVM) -> None:
        """Prepare a broker with its data in a folder; `settings` are added to those of the server."""
        self.folder, self._libs, self._java_options = folder, find_kafka_libs(), tuple(java_options)
        port, controller_port = find_free_ports(2)
        self.address = f"127.0.0.1:{port}"
        controller = f"127.0.0.1:{controller_port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        (folder / "log4j2.properties").write_text(_LOG_SETTINGS)
        all_settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(folder / "data"),
            **(settings or {}),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in all_settings.items()))
        self._process: subprocess.Popen[bytes] | None = None
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = self._run_java("kafka.tools.StorageTool", "format", "-t", f"A{cluster[1:]}", "-c", str(self._properties))
        if formatting.wait(_START_SECONDS):
            raise RuntimeError(f"the storage of the broker cannot be formatted:\n{self._read_log()}")

    @functools.cached_property
    def admin(self) -> AdminClient:
        """A client that creates and deletes topics."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    def start(self) -> None:
        """Start the process, and wait until it answers."""
        self._process = self._run_java("kafka.Kafka", str(self._properties))
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2])), 1):
                break
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker did not start:\n{self._read_log()}")
            time.sleep(0.05)
        self.admin.list_topics(timeout=_START_SECONDS)

    def stop(self) -> None:
        """End the process in an orderly way."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a loss of power does; what it has written stays."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Let the process fall silent, with its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def create_topic(self, name: str, partitions: int = 4, **config: str) -> None:
        """Create a topic, and wait until its partitions have leaders; `config` has its settings, with underscores for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, partitions, 1, config=settings)
        self.admin.create_topics([topic])[name].result(_START_SECONDS)
        limit = time.monotonic() + _START_SECONDS
        ends = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}
        while any(answer.exception(_START_SECONDS) for answer in self.admin.list_offsets(ends).values()):
            assert time.monotonic() < limit, f"the partitions of {name} have no leaders"
            time.sleep(0.05)
            self.admin.list_topics(name, timeout=_START_SECONDS)  # librdkafka itself asks only after minutes

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([name])[name].result(_START_SECONDS)
        while name in self.admin.list_topics(timeout=_START_SECONDS).topics:
            time.sleep(0.05)

    def configure_topic(self, name: str, **config: str) -> None:
        """Change settings of a topic; their names have underscores for dots."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(_START_SECONDS)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a topic have this many partitions."""
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(_START_SECONDS)

    def delete_records(self, name: str, offsets: Mapping[int, int]) -> None:
        """Delete the messages before an offset of each partition, as retention does."""
        places = [TopicPartition(name, partition, offset) for partition, offset in offsets.items()]
        for answer in self.admin.delete_records(places).values():
            answer.result(_START_SECONDS)

    @contextlib.contextmanager
    def end_with_this_process(self) -> Iterator[None]:
        """Let another process wait for the end of this one, even by a kill, and then kill the broker and delete its folder.

        The broker must run. It is not restarted in this block.
        """
        assert self._process is not None
        script = 'cat > /dev/null; kill -9 "$0"; rm -rf "$1"'
        command = ["sh", "-c", script, str(self._process.pid), str(self.folder)]
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603  our own script
        try:
            yield
        finally:
            watcher.kill()
            watcher.communicate()

    def _run_java(self, *arguments: str) -> subprocess.Popen[bytes]:
        settings = [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", f"-Dkafka.log={self.folder / 'kafka.log'}"]
        command = ["java", *self._java_options, *settings, "-cp", f"{self._libs}/*", *arguments]
        with (self.folder / "output.txt").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)  # noqa: S603  our own jars

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_START_SECONDS)
            self._process = None

    def _read_log(self) -> str:
        files = [self.folder / "output.txt", self.folder / "kafka.log"]
        return "\n".join(file.read_text(errors="replace")[-4000:] for file in files if file.exists())


@contextlib.contextmanager
def run_kafka_broker(
    folder: Path, settings: Mapping[str, str] | None = None, java_options: Sequence[str] = SMALL_JVM
) -> Iterator[KafkaBroker]:
    """Run a broker with its data in a folder."""
    broker = KafkaBroker(folder, settings, java_options)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
