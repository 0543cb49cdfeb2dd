"""Tests of the properties of a Kafka storage: which are allowed, and which environment variables they may name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strandline.errors import Invalid
from strandline.log.settings import LogSettings
from strandline.log.storage import kafka_properties
from strandline.log.storage.registry import KafkaConfiguration

BROKERS = "k1.example:9092,k2.example:9092"


@pytest.mark.parametrize(
    "name",
    [
        # Code, commands and files of the machine, and requests to other servers.
        *("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd", "sasl.kerberos.keytab"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"),
        *("ssl.crl.location", "ssl.providers", "sasl.oauthbearer.token.endpoint.url", "https.ca.location"),
        # Callbacks and logs of the driver.
        *("debug", "log_level", "statistics.interval.ms", "opaque", "error_cb"),
        # What our guarantees need.
        *("acks", "enable.idempotence", "bootstrap.servers", "group.id", "retries", "retry.backoff.ms"),
        *("delivery.timeout.ms", "isolation.level", "transactional.id", "enable.ssl.certificate.verification"),
        # Names that are none.
        *("", "no.such.property", "Client.Id", "client.id "),
    ],
)
def test_everything_that_is_not_listed_is_refused(name):
    """Properties that are not listed are refused when a storage is added. The error names the property."""
    with pytest.raises(Invalid, match="cannot be set") as caught:
        KafkaConfiguration(BROKERS, {name: "x"}).check(None, LogSettings(kafka_secrets="X"))  # type: ignore[arg-type]
    assert repr(name) in caught.value.detail


def test_a_misspelt_property_is_corrected():
    """The error suggests the nearest property."""
    with pytest.raises(Invalid, match=r"did you mean 'compression\.type'"):
        kafka_properties.check(BROKERS, {"compresion.type": "zstd"}, "")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("client.id", "x\0y", "control character"),
        ("ssl.ca.pem", "-----BEGIN\x1b[2J", "control character"),
        ("compression.type", "none such", "none such"),
        ("security.protocol", "telnet", "telnet"),
        ("linger.ms", "-5", "outside allowed range"),
        ("fetch.min.bytes", "many", r"fetch\.min\.bytes"),
        ("replication.factor", "0", "at least 1"),
        ("min.insync.replicas", "two", "at least 1"),
    ],
)
def test_values_that_cannot_be_used_are_refused(name, value, why):
    """The error comes when the storage is added, not when an event type switches to it."""
    with pytest.raises(Invalid, match=why):
        KafkaConfiguration(BROKERS, {name: value}).check(Path("data"), LogSettings())


def test_values_that_can_be_used_are_accepted():
    """No broker is asked: these do not exist."""
    given = {"compression.type": "zstd", "linger.ms": "5", "replication.factor": "3", "fetch.min.bytes": "10"}
    KafkaConfiguration(BROKERS, given).check(Path("data"), LogSettings())


def test_listed_properties_are_passed_on():
    """Listed properties are passed to the driver, except those of new topics."""
    given = {"client.id": "shop", "compression.type": "zstd", "replication.factor": "3"}
    plain = {"client.id": "shop", "compression.type": "zstd"}
    assert kafka_properties.resolve(BROKERS, given, "") == (plain, {})


@pytest.mark.parametrize("name", sorted(kafka_properties.ALLOWED))
def test_only_a_secret_names_a_variable(name, monkeypatch):
    """Only secrets may be given as `env:NAME`."""
    monkeypatch.setenv("DEMO_SECRET", "hush-hush")
    if name in {"sasl.password", "ssl.key.pem", "ssl.key.password"}:
        assert kafka_properties.resolve(BROKERS, {name: "env:DEMO_SECRET"}, "DEMO_SECRET") == (
            {},
            {name: "hush-hush"},
        )
    else:
        with pytest.raises(Invalid, match="is no secret"):
            kafka_properties.check(BROKERS, {name: "env:DEMO_SECRET"}, "DEMO_SECRET")


def test_a_secret_is_no_plain_text():
    """A secret in clear text is refused, and the error does not show it."""
    with pytest.raises(Invalid, match="write env:NAME") as caught:
        kafka_properties.check(BROKERS, {"sasl.password": "hush-hush"}, "hush-hush")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "permitted",
    [
        *("DEMO_SECRET", "OTHER, DEMO_SECRET", "DEMO_SECRET@elsewhere:9092,DEMO_SECRET"),
        "DEMO_SECRET@k1.example:9092,DEMO_SECRET@k2.example:9092",
    ],
)
def test_permitted_variables(permitted):
    """A variable is permitted for all brokers, or for each broker of the storage."""
    kafka_properties.check(BROKERS, {"sasl.password": "env:DEMO_SECRET"}, permitted)


@pytest.mark.parametrize(
    "permitted", ["", "DEMO", "DEMO_SECRET_2", "demo_secret", "*", "DEMO_SECRET@k1.example:9092", "DEMO_SECRET@"]
)
def test_variables_that_the_node_does_not_permit(permitted, monkeypatch):
    """Other variables are refused with the name of the setting. The error does not show whether they are set."""
    errors = set()
    for value in ("hush-hush", None):
        monkeypatch.setenv("DEMO_SECRET", value) if value else monkeypatch.delenv("DEMO_SECRET")
        with pytest.raises(Invalid, match=r"log\.kafka_secrets") as caught:
            kafka_properties.resolve(BROKERS, {"sasl.password": "env:DEMO_SECRET"}, permitted)
        errors.add(caught.value.detail)
    assert len(errors) == 1


def test_a_permitted_variable_that_is_not_set():
    """The error names a permitted variable that is not set."""
    with pytest.raises(Invalid, match="STRANDLINE_NO_SUCH, which is not set"):
        kafka_properties.resolve(BROKERS, {"sasl.password": "env:STRANDLINE_NO_SUCH"}, "STRANDLINE_NO_SUCH")


def test_no_secret_without_brokers():
    """An empty list of brokers does not permit a variable."""
    with pytest.raises(Invalid, match=r"log\.kafka_secrets"):
        kafka_properties.check(",", {"sasl.password": "env:DEMO_SECRET"}, "")


def test_the_documentation_lists_them():
    """The how-to page lists all allowed properties and no others."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text()
    section = page.partition("### Kafka")[2].partition("Certificates are given")[0]
    assert {*re.findall(r"`([^`]+)`", section)} == kafka_properties.ALLOWED
