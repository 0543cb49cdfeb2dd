"""A fan-out that is killed or paused at any step: the next one repeats the batch, with the same result."""

from __future__ import annotations

import os
import random
import signal

import pytest

from services import is_stopped, until
from social_network import killed, start, tried

# In the order in which a batch passes them.
STEPS = [
    "fanout.opened",
    "fanout.authors",
    "fanout.delivered",
    "fanout.marked",
    "fanout.closing",
    "fanout.closed",
]


ON_SQLITE = pytest.mark.parametrize("opened", ["sqlite"], indirect=True)


@ON_SQLITE
@pytest.mark.parametrize("step", STEPS)
def test_a_fan_out_that_was_killed(network, node, step):
    """In its second batch. More records arrive before the next process repeats the batch."""
    network.live(30, 7)
    killed(node, f"{step}:kill:2")
    network.live(30, 8)
    until(lambda: tried(node), "the lease of the killed process")
    network.check()


@ON_SQLITE
@pytest.mark.parametrize("step", ["fanout.opened", "fanout.authors", "fanout.delivered", "fanout.marked"])
def test_a_fan_out_that_sleeps_and_is_replaced(network, node, step):
    """When it wakes up, it writes nothing that belongs to later batches."""
    network.live(30, 9)
    with start(node, f"{step}:stop:2") as old:
        until(lambda: is_stopped(old.pid), "the pause of the fan-out")
        network.live(30, 10)
        until(lambda: tried(node), "the lease of the paused process")
        network.check()
        os.kill(old.pid, signal.SIGCONT)
        old.communicate(timeout=120)
    network.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(os.environ.get("CHAOS_SEED", "1")) + number for number in range(10)])
def test_a_fan_out_that_is_killed_again_and_again(network, node, seed):
    chance = random.Random(seed)
    for part in range(10):
        network.live(30, seed * 100 + part)
        with start(node, f"{chance.choice(STEPS)}:kill:{chance.randint(1, 4)}") as process:
            process.communicate(timeout=120)
    until(lambda: tried(node), "the lease of the killed process")
    network.check()
