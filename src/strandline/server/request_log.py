"""One line in the log for each request that the settings choose."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

from starlette.types import Scope

from strandline.logging_setup import deferred, fields, write_deferred
from strandline.server.flow import flow_id

log = logging.getLogger("strandline.http")

# How long lines wait for others, because a write costs more than the rest of a line.
_DELAY_S = 0.1


class RequestLog:
    """`lowest_status`: requests with a lower status get no line. Used on the event loop only."""

    def __init__(self, lowest_status: int) -> None:
        self._lowest_status = lowest_status
        self._waiting = False

    def add(self, scope: Scope, status: int, seconds: float) -> None:
        if status < self._lowest_status or not log.isEnabledFor(logging.INFO):
            return
        # Without `log.info`, which looks for the line of code that called it.
        what = (scope["method"], quote(scope["path"]))
        record = logging.LogRecord(log.name, logging.INFO, __file__, 0, "%s %s", what, None)
        record.__dict__ |= fields(status=status, ms=round(seconds * 1000, 1), flow_id=flow_id(scope))
        log.handle(deferred(record))
        if not self._waiting:
            self._waiting = True
            asyncio.get_running_loop().call_later(_DELAY_S, self._write)

    def _write(self) -> None:
        self._waiting = False
        write_deferred()
