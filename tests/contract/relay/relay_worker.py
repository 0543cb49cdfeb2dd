"""Runs the relay from `orders` to `later` once: `relay_worker.py <data>`."""

from __future__ import annotations

import sys
import time

from relay_place import relay

import strandline
from strandline.errors import Conflict, Fenced


def main(data: str) -> None:
    with strandline.open(data) as node:
        while True:
            try:
                relay(node).once()
            except Fenced:
                raise
            except Conflict:  # a process that was killed counts as there until its lease has expired
                time.sleep(0.1)
            else:
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
