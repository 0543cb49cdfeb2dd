"""How many connections and streams a node serves: within the file descriptors of its process."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from dataclasses import replace

from strandline.server.settings import ServerSettings

log = logging.getLogger(__name__)


def fitted(settings: ServerSettings) -> ServerSettings:
    """Raise the process's limit of open files, and reduce the settings to what the limit allows.

    Half of the files are left to storages. Half of the connections are left to other requests, so that streams
    never keep out `/health`.
    """
    files = _open_files()
    connections = min(settings.max_connections, files // 2)
    found = replace(settings, max_connections=connections, max_streams=min(settings.max_streams, connections // 2))
    if found != settings:
        log.warning(
            "this node serves at most %d connections and %d streams, because the limit of open files is %d and "
            "server.max_connections is %d",
            connections, found.max_streams, files, settings.max_connections,
        )  # fmt: skip
    return found


def _open_files() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30
