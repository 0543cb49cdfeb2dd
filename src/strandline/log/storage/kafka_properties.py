"""The properties that a Kafka storage may have. All others are refused.

A caller that may add a storage chooses its properties and brokers. So no property may name a file, a library, a
command or another server. A secret is written as `env:NAME` and is sent to the brokers. So the node's settings
(`log.kafka_secrets`) decide which variables a storage may name, and for which brokers.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.config import from_environment, nearest
from strandline.errors import Invalid

# Settings of new topics; the others are settings of the driver.
_OF_TOPICS = frozenset({"replication.factor", "min.insync.replicas"})
_SECRETS = frozenset({"sasl.password", "ssl.key.pem", "ssl.key.password"})
_PLAIN = frozenset(
    {
        *("client.id", "client.rack", "broker.address.family", "security.protocol"),
        *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "ssl.ca.pem", "ssl.certificate.pem"),
        *("socket.timeout.ms", "socket.connection.setup.timeout.ms", "socket.keepalive.enable"),
        *("connections.max.idle.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "metadata.max.age.ms"),
        *("compression.type", "compression.codec", "compression.level", "linger.ms", "request.timeout.ms"),
        *("batch.size", "batch.num.messages", "queue.buffering.max.messages", "queue.buffering.max.kbytes"),
        *("fetch.min.bytes", "fetch.max.bytes", "fetch.message.max.bytes", "max.partition.fetch.bytes"),
        *("fetch.wait.max.ms", "queued.min.messages", "queued.max.messages.kbytes", "check.crcs"),
    }
)
#: Every property that a storage may have.
ALLOWED = _OF_TOPICS | _SECRETS | _PLAIN
_REFERENCE = "env:"
# Certificates have several lines.
_LINE_BREAKS = "\r\n"


def check(bootstrap_servers: str, properties: Mapping[str, str], permitted: str) -> None:
    """Raise Invalid for the first property that is not allowed. `permitted` is the setting `log.kafka_secrets`."""
    for name, value in properties.items():
        if name not in ALLOWED:
            raise Invalid(f"the Kafka property {name!r} cannot be set for a storage{nearest(name, ALLOWED)}")
        if not all(char.isprintable() or char in _LINE_BREAKS for char in value):
            raise Invalid(f"the Kafka property {name!r} has a control character in its value; remove it")
        if name in _SECRETS:
            _check_secret(name, value, bootstrap_servers, permitted)
        elif value.startswith(_REFERENCE):
            raise Invalid(f"the Kafka property {name!r} is no secret; write its value instead of env:NAME")


def _check_secret(name: str, value: str, bootstrap_servers: str, permitted: str) -> None:
    if not value.startswith(_REFERENCE):
        raise Invalid(f"the Kafka property {name!r} is a secret; write env:NAME of a variable that holds it")
    variable = value.removeprefix(_REFERENCE)
    entries = _parts(permitted)
    brokers = {f"{variable}@{server}" for server in _parts(bootstrap_servers)}
    if variable in entries or (brokers and brokers <= entries):
        return
    raise Invalid(
        f"the Kafka property {name!r} must not name the environment variable {variable} for these brokers; "
        "permit it with the setting log.kafka_secrets of the node"
    )


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def resolve(
    bootstrap_servers: str, properties: Mapping[str, str], permitted: str
) -> tuple[dict[str, str], dict[str, str]]:
    """The properties of the driver, and its secrets with their values. Raises Invalid like `check`."""
    check(bootstrap_servers, properties, permitted)
    secrets = {
        name: from_environment(f"the Kafka property {name!r}", value.removeprefix(_REFERENCE))
        for name, value in properties.items()
        if name in _SECRETS
    }
    return {name: value for name, value in properties.items() if name in _PLAIN}, secrets
