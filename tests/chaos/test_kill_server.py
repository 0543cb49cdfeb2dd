"""`kill -9` of the server under load: acknowledged events are stored once and in order."""

import os
import random
import socket
import time

import pytest
from ledger import Ledger
from load import start_publishers, stop_publishers, stored

from services import CLIENT, Server, until

PUBLISHERS = 4
PARTITIONS = 4


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_killing_the_server_loses_doubles_and_reorders_nothing(tmp_path, rounds):
    """After a kill nothing listens on the port. Every acknowledged event is stored exactly once, in order."""
    seed = int(os.environ.get("CHAOS_SEED", "1"))
    dice = random.Random(seed)
    server = Server(tmp_path).start()
    CLIENT.post(f"{server.url}/event-types", json={"name": "chaos", "partitions": PARTITIONS}).raise_for_status()
    ledger = Ledger()
    began = time.monotonic()
    publishers = start_publishers(PUBLISHERS, [server.url], "chaos", ledger, seed)
    try:
        for number in range(rounds):
            before = sum(publisher.acknowledged for publisher in publishers)
            until(lambda b=before: sum(p.acknowledged for p in publishers) > b + 5, "more acknowledged publishes")
            time.sleep(dice.uniform(0, 0.3))  # a random moment
            server.kill()
            assert not alive(server.pid)
            assert not listens(server.port), "the port is still open after the kill"
            server.start()
            ledger_size = len(ledger.acknowledged)
            print(f"kill {number + 1}/{rounds}: {ledger_size} events acknowledged so far")  # noqa: T201
    finally:
        stop_publishers(publishers)
        server.stop()
    ledger.check(stored(tmp_path, "chaos"))
    print(  # noqa: T201
        f"seed {seed}: {rounds} kills, {len(ledger.acknowledged)} acknowledged of {len(ledger.attempted)} "
        f"attempted events, {time.monotonic() - began:.0f} s"
    )
