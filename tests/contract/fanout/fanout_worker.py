"""Runs the fan-out once: `fanout_worker.py <data>`."""

from __future__ import annotations

import sys
import time

import strandline
from social_network import tried


def main(data: str) -> None:
    with strandline.open(data) as node:
        while not tried(node):  # a process that was killed counts as there until its lease has expired
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
