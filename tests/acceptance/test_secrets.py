"""Tests that the environment of a node does not leak to brokers, nor into answers, logs or output of commands."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from requests_as_is import Answer, assert_problem, send
from services import Server, run_cli, until
from services.kafka import Broker
from services.postgres import PostgresServer
from strandline.cli import cli
from strandline.cli.failures import guarded

SECRET = "hush-environment-4711"
WRONG = "hush-wrong-4711"
OURS = "hush-catalog-4711"
#: The environment of the node. A storage may name the last two variables.
ENVIRONMENT = {"DEMO_SECRET": SECRET, "WRONG_PASSWORD": WRONG, "KAFKA_PASSWORD": Broker.password}
SASL = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": Broker.user}


class Listener(threading.Thread):
    """The broker of an attacker: it accepts connections and records what it receives."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.servers = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.received = b""

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection:
            while part := connection.recv(65536):
                self.received += part

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def listening() -> Iterator[Listener]:
    with closing(Listener()) as listener:
        listener.start()
        yield listener


@pytest.fixture(scope="module")
def node(tmp_path_factory, kafka: Broker) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("secrets") / "data"
    permitted = f"KAFKA_PASSWORD@{kafka.guarded_servers}, WRONG_PASSWORD"
    with Server(data, env=ENVIRONMENT, logs_level="debug", log_kafka_secrets=permitted) as started:
        assert send(started, "POST", "/event-types", {"name": "orders"}).status == 201
        yield started


def storage(name: str, servers: str, properties: dict[str, str]) -> dict[str, Any]:
    configuration = {"bootstrap_servers": servers, "properties": properties}
    return {"id": name, "storage_type": "kafka", "kafka_configuration": configuration}


@pytest.mark.parametrize(
    "properties",
    [
        {"client.id": "env:DEMO_SECRET"},
        {"client.id": "env:KAFKA_PASSWORD"},
        {"client.rack": "env:DEMO_SECRET"},
        {**SASL, "sasl.username": "env:DEMO_SECRET", "sasl.password": "env:WRONG_PASSWORD"},
        {**SASL, "sasl.password": "env:DEMO_SECRET"},
        {**SASL, "sasl.password": "env:KAFKA_PASSWORD"},
        {**SASL, "sasl.password": "env:PATH"},
    ],
    ids=lambda properties: str({name: value for name, value in properties.items() if "env:" in value}),
)
def test_no_variable_is_sent_to_a_broker_that_a_caller_names(node: Server, properties):
    """A variable is not sent to brokers for which the settings do not permit it."""
    with listening() as attacker:
        answer = send(node, "POST", "/storages", storage("theirs", attacker.servers, properties))
        # A storage that was added connects when it is first used.
        send(node, "POST", "/event-types/orders/timelines", {"storage_id": "theirs"})
        assert not any(value.encode() in attacker.received for value in ENVIRONMENT.values())
        assert_problem(answer, 422, "Kafka property")
    assert [found["id"] for found in send(node, "GET", "/storages").json] == ["default"]


@pytest.mark.parametrize(
    "name",
    [
        *("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd", "ssl.ca.location"),
        *("ssl.key.location", "sasl.oauthbearer.token.endpoint.url", "debug", "log_level"),
    ],
)
def test_no_property_reaches_into_the_machine(node: Server, name):
    """Properties that name libraries, commands, files or servers are refused."""
    answer = send(node, "POST", "/storages", storage("theirs", "127.0.0.1:1", {name: "/bin/true"}))
    assert name in assert_problem(answer, 422, "cannot be set")["detail"]


@pytest.mark.parametrize("directory", ["{}/elsewhere", "../elsewhere", "link/elsewhere", "{}", "/"])
def test_a_sqlite_storage_stays_in_the_data_directory(node: Server, directory):
    """A directory outside of the data directory is refused, and nothing is created there."""
    outside = node.folder / "outside"
    outside.mkdir(exist_ok=True)
    if not (link := node.folder / "data" / "link").is_symlink():
        link.symlink_to(outside)
    place = {"directory": directory.replace("{}", str(outside))}
    body = {"id": "theirs", "storage_type": "sqlite", "sqlite_configuration": place}
    assert_problem(
        send(node, "POST", "/storages", body), 422, "log.storage_directories" if "." not in directory else ""
    )
    assert list(outside.iterdir()) == []
    assert not (node.folder / "elsewhere").exists()


def test_the_operator_can_allow_a_directory(tmp_path):
    """A SQLite storage can be in a directory that the settings allow."""
    disk = tmp_path / "disk"
    body = {"id": "disk", "storage_type": "sqlite", "sqlite_configuration": {"directory": f"{disk}/events"}}
    with Server(tmp_path / "data", log_storage_directories=disk) as server:
        assert send(server, "POST", "/storages", body).status == 201
        assert send(server, "POST", "/event-types", {"name": "orders"}).status == 201
        assert send(server, "POST", "/event-types/orders/timelines", {"storage_id": "disk"}).status == 201
    assert [file.suffix for file in (disk / "events").iterdir()] != []


COMMANDS = [
    *(("storages", "list"), ("storages", "list", "--json"), ("timelines", "list", "orders"), ("doctor",)),
    ("consume", "orders", "--start", "BEGIN", "--limit", "1"),
    ("storages", "add", "more", "--kafka", "127.0.0.1:1", "--property", "sasl.password=env:DEMO_SECRET"),
]


def _said(node: Server, *command: str) -> Iterator[bytes]:
    """The output and errors of a command, over HTTP and in a process that has the same environment as the node."""
    for target in (("--url", node.url), ("--data", str(node.folder / "data"))):
        done = run_cli(*command, *target, **ENVIRONMENT)
        yield from (done.stdout, done.stderr)


def everything(node: Server) -> Iterator[Answer]:
    """The answers of the routes that read."""
    for path in (
        "/",
        "/openapi.json",
        "/metrics",
        "/ready",
        "/storages",
        "/event-types",
        "/subscriptions",
        "/archive",
    ):
        yield send(node, "GET", path)
    for name in ("guarded", "wrong"):
        yield send(node, "GET", f"/storages/{name}")
    for path in ("timelines", "timelines/switch", "partitions"):
        yield send(node, "GET", f"/event-types/orders/{path}")


def test_a_permitted_secret_opens_the_cluster_and_is_shown_nowhere(node: Server, kafka: Broker):
    """No log at level debug, no answer and no command shows a password of Kafka, right or wrong."""
    said: list[bytes] = []
    for name, variable in (("guarded", "KAFKA_PASSWORD"), ("wrong", "WRONG_PASSWORD")):
        properties = {**SASL, "sasl.password": f"env:{variable}"}
        said.append(send(node, "POST", "/storages", storage(name, kafka.guarded_servers, properties)).body)
        said.append(send(node, "POST", "/event-types/orders/timelines", {"storage_id": name}).body)
    assert [line["storage_id"] for line in send(node, "GET", "/event-types/orders/timelines").json] == [
        "default",
        "guarded",
    ]
    assert send(node, "POST", "/event-types/orders/events", [{"n": 1}]).status == 200
    said += [answer.body for answer in everything(node)]
    said += [done for command in COMMANDS for done in _said(node, *command)]
    until(lambda: "SASL" in node.log_file.read_text(), "the driver's own line about the wrong password")
    said.append(node.log_file.read_bytes())
    for secret in ENVIRONMENT.values():
        assert not [text for text in said if secret.encode() in text]
    assert b"env:KAFKA_PASSWORD" in b"".join(said)


def test_the_secrets_of_settings_are_shown_nowhere(tmp_path, postgres: PostgresServer, monkeypatch, capfd):
    """Commands and nodes do not show a secret that a setting refers to, nor one that it contains by mistake."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("OUR_SECRET", OURS)
    database = postgres.new_database()
    monkeypatch.setenv("STRANDLINE_COORDINATION__URL", "zookeeper://127.0.0.1:1")
    for address in (
        postgres.url(database, user="nobody-there:env:OUR_SECRET"),
        postgres.url(database, user="nobody-there:env:OUR_SECRET", port=1),
        postgres.url(database, user=f"nobody-there:{OURS}"),
        f"postgresql://nobody-there:{OURS}/slash@127.0.0.1:1/{database}",
        f"mysql://nobody-there:{OURS}@127.0.0.1:1/{database}",
        "env:OUR_SECRET",
    ):
        monkeypatch.setenv("STRANDLINE_CATALOG__URL", address)
        assert guarded(cli, ["event-types", "list", "--data", str(tmp_path / "data")]) != 0
    guarded(cli, ["doctor", "--data", str(tmp_path / "data")])
    for scheme in ("http://", "htp://", ""):
        for command in (["doctor"], ["event-types", "list", "--json"]):
            assert guarded(cli, [*command, "--url", f"{scheme}proxy-user:{OURS}@127.0.0.1:1"]) != 0
    said = [*capfd.readouterr()]
    for setting, value in (
        ("CATALOG__URL", postgres.url(database, user="nobody-there:env:OUR_SECRET")),
        ("CATALOG__URL", f"mysql://nobody-there:{OURS}@127.0.0.1:1/{database}"),
        ("COORDINATION__URL", "env:OUR_SECRET"),
        ("LOG__RETENTION_MS", "env:OUR_SECRET"),
    ):
        urls = {"CATALOG__URL": postgres.url(database), "COORDINATION__URL": "zookeeper://127.0.0.1:1"}
        env = {f"STRANDLINE_{name}": text for name, text in {**urls, setting: value}.items()}
        node = run_cli("serve", "--logs-level", "debug", "--data", str(tmp_path / "data"), OUR_SECRET=OURS, **env)
        assert node.returncode != 0
        said += [node.stdout.decode(), node.stderr.decode()]
    assert "nobody-there" in "".join(said)
    assert OURS not in "".join(said)
