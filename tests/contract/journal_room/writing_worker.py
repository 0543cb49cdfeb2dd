"""Another process that appends to one journal until it is killed. It prints the seqNr of each acknowledged event.

usage: writing_worker.py DATA TOPIC ENTITY NAME
"""

from __future__ import annotations

import sys

import strandline
from strandline.errors import Conflict


def main(data: str, topic: str, entity: str, name: str) -> None:
    with strandline.open(data) as platform:
        journal = platform.journal(topic)
        pointer = journal.pointer(entity).seq_nr or 0
        while True:
            try:
                pointer = journal.append(entity, [name], expected=pointer).seq_nr
            except Conflict as error:
                pointer = error.info["seq_nr"] or 0
            else:
                print(pointer, flush=True)  # noqa: T201 - this is how it answers


if __name__ == "__main__":
    main(*sys.argv[1:])
