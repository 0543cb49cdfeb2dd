"""Opens the coordination that is configured in the settings."""

from __future__ import annotations

import re
from pathlib import Path

from strandline.coordination.port import Coordination
from strandline.coordination.settings import CoordinationSettings
from strandline.coordination.sqlite import SqliteCoordination
from strandline.errors import Invalid

# A host is a name, an IPv4 address, or an IPv6 address in brackets. The root is a path without empty parts.
_HOST = r"(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d+)?"
_URL = re.compile(rf"zookeeper://({_HOST}(?:,{_HOST})*)((?:/[^/?#]+)*)/?")
_ROOT = "/strandline"


def connect(settings: CoordinationSettings, data: Path) -> Coordination:
    if not settings.url:
        return SqliteCoordination(data / "coordination.db", settings.session_timeout_ms)
    match = _URL.fullmatch(settings.url)
    if match is None:
        raise Invalid("coordination.url must look like zookeeper://host:2181/strandline")
    from strandline.coordination.zookeeper import ZookeeperCoordination  # noqa: PLC0415 - its driver is an extra

    hosts, root = match.groups()
    return ZookeeperCoordination(hosts, root or _ROOT, settings.session_timeout_ms)
