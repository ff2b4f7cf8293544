"""TLS and SASL: a source, its requests and its dead letters use a listener that checks the password and has a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.bench.driver.kafka_broker import KafkaBroker, find_free_ports
from headrace.connectors.kafka.consumer_pool import get_pool
from headrace.errors import SourceError
from support.certificates import make_certificate
from support.kafka_feed import Feed, finish_letters, read_all, read_topic

LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_app="hunter2";'


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[KafkaBroker, str, Path]]:
    """Run a broker with a second listener; yield it, the address of the listener, and the certificate."""
    broker, port = KafkaBroker(tmp_path / "broker"), find_free_ports(1)[0]
    certificate = make_certificate(tmp_path, "broker")
    store = tmp_path / "store.pem"
    store.write_text(certificate.key.read_text() + certificate.chain.read_text())
    properties = tmp_path / "broker" / "server.properties"
    listeners = next(line for line in properties.read_text().splitlines() if line.startswith("listeners="))
    with properties.open("a") as file:
        file.write(f"{listeners},SECURE://127.0.0.1:{port}\n")
        file.write(f"advertised.listeners=PLAINTEXT://{broker.address},SECURE://127.0.0.1:{port}\n")
        file.write("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL\n")
        file.write(f"ssl.keystore.type=PEM\nssl.keystore.location={store}\n")
        file.write(f"sasl.enabled.mechanisms=PLAIN\nlistener.name.secure.plain.sasl.jaas.config={LOGIN}\n")
    broker.start()
    yield broker, f"127.0.0.1:{port}", certificate.chain
    get_pool().close_idle()
    broker.kill()


@pytest.mark.kafka
def test_a_stream_over_tls_with_a_password(
    secure: tuple[KafkaBroker, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broker, address, certificate = secure
    feed = Feed(broker, tmp_path)
    broker.create_topic("letters", 1)
    feed.send(10)
    feed.put(b"\xff")
    feed.producer.flush()
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("WRONG_PASSWORD", "hunter3")
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "ssl.ca.location": str(certificate),
    }
    options = {"brokers": address, "on_error": "skip_row", "dead_letter": "kafka:letters"}
    with pytest.raises(SourceError, match="cannot be reached"):
        feed.open(**options, options={**client, "sasl.password": "env:WRONG_PASSWORD"})
    with feed.open(**options, options={**client, "sasl.password": "env:KAFKA_PASSWORD"}) as session:
        assert read_all(session, session.add("SELECT v FROM s")) == list(range(10))
        finish_letters(session)
        assert session.streams()["s"]["error"] is None
    assert [message.value() for message in read_topic(broker, "letters")] == [b"\xff"]
    assert "hunter2" not in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "state").rglob("*") if path.is_file() and path.name != "lock"
    )
