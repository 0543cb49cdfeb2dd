"""The Redis client on one server and on a Cluster: pipelines, scripts, WAIT, redirects and errors."""

from __future__ import annotations

import pytest

from services import free_port, until
from services.valkey import ValkeyServer
from strandline.engine.redis import Redis
from strandline.engine.redis_address import RedisAddress
from strandline.engine.redis_commands import Script, command, for_each_key
from strandline.errors import Invalid, OutcomeUnknown, StorageFull, Unavailable

APPEND_TWICE = Script("redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('RPUSH', KEYS[1], ARGV[1])")


@pytest.fixture(params=["single", "cluster"])
def server(request):
    service = request.getfixturevalue("valkey" if request.param == "single" else "valkey_cluster")
    service.flush()
    return service


@pytest.fixture
def client(server):
    opened = Redis(server.url, scripts=[APPEND_TWICE])
    yield opened
    opened.close()


def keys(count: int) -> list[bytes]:
    return [b"key-%d" % number for number in range(count)]


def test_commands_of_many_keys_are_answered_in_order(client):
    """The keys are on all nodes."""
    client.write([command(b"RPUSH", key, key) for key in keys(100)])
    assert client.write(for_each_key(b"RPUSHX", [*keys(100), b"none"], b"\x00\r\n")) == [2] * 100 + [0]
    lists = client.read([command(b"LRANGE", key, 0, -1) for key in keys(100)])
    assert lists == [[key, b"\x00\r\n"] for key in keys(100)]


def test_a_node_learns_a_script_when_it_is_called(client):
    assert client.write([APPEND_TWICE.command([key], b"x") for key in keys(10)]) == [2] * 10
    assert client.write([APPEND_TWICE.command([key], b"x") for key in keys(10)]) == [4] * 10


def test_a_refused_command_does_not_fail_the_others(client):
    """Commands on a value of the wrong type are refused."""
    client.write([command(b"SET", b"text", b"x")])
    first, second, third = client.write(
        [command(b"RPUSH", b"a", b"x"), command(b"RPUSH", b"text", b"x"), command(b"RPUSH", b"b", b"x")]
    )
    assert (first, third) == (1, 1)
    assert isinstance(second, Unavailable)
    assert "WRONGTYPE" in str(second)


def test_every_master_has_a_key_of_its_own(client, server):
    found = client.keys_on_masters(b"position")
    nodes = {server.master_of(key).port for key in found} if hasattr(server, "nodes") else {server.port}
    assert len(nodes) == len(found) == (3 if hasattr(server, "nodes") else 1)
    assert client.write([command(b"SET", key, b"x") for key in found]) == [b"OK"] * len(found)


def test_a_server_that_is_down_is_unavailable():
    client = Redis(f"redis://127.0.0.1:{free_port()}")
    (answer,) = client.write([command(b"SET", b"key", b"value")])
    assert isinstance(answer, Unavailable)


def test_a_cluster_that_is_down_is_unavailable():
    client = Redis(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")
    answers = client.read([command(b"GET", key) for key in keys(1000)])
    assert {type(answer) for answer in answers} == {Unavailable}
    with pytest.raises(Unavailable):
        client.keys_on_masters(b"position")


def test_a_write_without_enough_replicas_is_unknown(valkey):
    """The write is done on the master; only its copies are missing."""
    client = Redis(valkey.url, replicas=1, wait_ms=10)
    (answer,) = client.write([command(b"SET", b"uncopied", b"value")])
    assert isinstance(answer, OutcomeUnknown)
    assert "0 of 1 replicas" in str(answer)
    assert client.read([command(b"GET", b"uncopied")]) == [b"value"]


def test_a_write_with_replicas_is_acknowledged(valkey_cluster):
    client = Redis(valkey_cluster.url, replicas=1, wait_ms=60_000)
    assert client.write([command(b"SET", key, b"value") for key in keys(100)]) == [b"OK"] * 100


def test_redirects_of_a_cluster_are_followed(valkey_cluster):
    """While a slot moves, new keys are at its new master (ASK); afterwards all of them are (MOVED)."""
    client = Redis(valkey_cluster.url, replicas=1, wait_ms=60_000, scripts=[APPEND_TWICE])
    assert client.write([command(b"RPUSH", b"before{moving}", b"x")]) == [1]
    source = valkey_cluster.master_of(b"{moving}")
    target = next(node for node in valkey_cluster.nodes if node.is_master and node is not source)
    slot = source.execute("CLUSTER", "KEYSLOT", "{moving}")
    target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
    source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)
    both = [command(b"RPUSH", b"before{moving}", b"y"), APPEND_TWICE.command([b"new{moving}"], b"x")]
    assert client.write(both) == [2, 2]
    assert client.read([command(b"LRANGE", b"new{moving}", 0, -1)]) == [[b"x", b"x"]]
    source.execute("MIGRATE", "127.0.0.1", target.port, "before{moving}", 0, 5_000)
    for node in (target, source):
        node.execute("CLUSTER", "SETSLOT", slot, "NODE", target.node_id)
    assert client.write(both) == [3, 4]


def test_a_paused_server_makes_writes_unknown(tmp_path, monkeypatch):
    """Its answer is missing, so nobody knows whether the write was carried out."""
    monkeypatch.setattr("strandline.engine.redis._ANSWER_SECONDS", 0.2)
    with ValkeyServer(tmp_path) as server:
        client = Redis(server.url)
        assert client.write([command(b"SET", b"key", b"1")]) == [b"OK"]
        server.pause()
        (write,) = client.write([command(b"SET", b"key", b"2")])
        (read,) = client.read([command(b"GET", b"key")])
        assert isinstance(write, OutcomeUnknown)
        assert isinstance(read, Unavailable)
        server.resume()
        until(lambda: client.read([command(b"GET", b"key")]) == [b"2"], "the paused write")


def test_a_restarted_server_is_used_again(tmp_path):
    """Connections of the pool that have ended are replaced without an error."""
    with ValkeyServer(tmp_path) as server:
        client = Redis(server.url, scripts=[APPEND_TWICE])
        assert client.write([APPEND_TWICE.command([b"key"], b"x")]) == [2]
        server.kill()
        assert isinstance(client.write([command(b"SET", b"key", b"1")])[0], Unavailable)
        server.bring_back()
        assert client.write([APPEND_TWICE.command([b"key"], b"x")]) == [2]


def test_a_full_server_is_reported_as_full(tmp_path):
    with ValkeyServer(tmp_path, ["--maxmemory", "1", "--maxmemory-policy", "noeviction"]) as server:
        (answer,) = Redis(server.url).write([command(b"SET", b"key", b"value")])
        assert isinstance(answer, StorageFull)


def test_a_password_is_given_by_reference_and_never_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("RIGHT", "open-sesame")
    monkeypatch.setenv("WRONG", "close-sesame")
    with ValkeyServer(tmp_path, ["--requirepass", "open-sesame"]) as server:
        address = f"127.0.0.1:{server.port}"
        assert Redis(f"redis://:env:RIGHT@{address}").write([command(b"SET", b"key", b"1")]) == [b"OK"]
        for login in (":env:WRONG@", "someone:env:WRONG@", ""):
            (answer,) = Redis(f"redis://{login}{address}").write([command(b"SET", b"key", b"1")])
            assert isinstance(answer, Unavailable)
            assert "sesame" not in f"{answer} {answer.__cause__!r}"
    assert "sesame" not in repr(RedisAddress.parse("redis://:env:RIGHT@host"))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "redis://:secret@host",
            "redis://user:secret@host:1",
            "redis+cluster://:secret@host",
            "redis://h:secret@/x",
        ),
        *("redis://host/secret", "redis://host:secret", "redis://host?password=secret", "http://secret@host"),
        *("redis://secret,host", "redis+cluster://secret/1", "redis://@/secret", "redis://:env:secret@host"),
    ],
)
def test_a_wrong_address_is_refused_without_showing_it(url):
    """A secret may be in any part of an address that is wrong."""
    with pytest.raises(Invalid) as refused:
        RedisAddress.parse(url)
    assert "secret" not in str(refused.value).replace("variable secret,", "")
