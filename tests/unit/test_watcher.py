"""The watcher tells of every change, the one before its first look included."""

import threading

from strandline.log.storage.watcher import Watcher


def test_the_first_look_tells_also_of_what_is_not_there():
    """Who began to watch may have looked just before it was removed."""
    told = threading.Event()
    watcher = Watcher(dict.fromkeys, 60)
    try:
        watcher.watch("removed", told.set)
        assert told.wait(10)
    finally:
        watcher.close()
