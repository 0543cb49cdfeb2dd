"""Connects to the new topics of switches, so that the first publish to a new timeline does not wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from strandline.clock import Clock
from strandline.log.model import Switch
from strandline.log.open_storages import Storages

log = logging.getLogger(__name__)

# A storage that needs longer is connected to by the first publish.
_PATIENCE_MS = 1_000


class Warming:
    """One attempt per switch, in a thread of its own: a storage that does not answer delays nothing else."""

    def __init__(self, storages: Storages, clock: Clock, ended: Callable[[], None]) -> None:
        """`ended` is called after every attempt, in any thread."""
        self._storages = storages
        self._clock = clock
        self._ended = ended
        #: By the token of the switch, when its attempt began; None when it has ended.
        self._began_ms: dict[str, int | None] = {}

    def begin(self, switch: Switch) -> None:
        """Start the attempt, if it was not started before."""
        if switch.token not in self._began_ms:
            self._began_ms[switch.token] = self._clock.steady_ms()
            threading.Thread(target=self._connect, args=(switch,), name="strandline-warming", daemon=True).start()

    def _connect(self, switch: Switch) -> None:
        try:
            self._storages.get(switch.storage_id).make_ready(switch.topic)
        except Exception as error:  # noqa: BLE001 - the switch goes on
            log.info("the new topic of %s cannot be reached yet: %s", switch.event_type, error)
        self._began_ms[switch.token] = None
        self._ended()

    def underway(self) -> bool:
        """Whether an attempt has not ended yet that is worth waiting for."""
        late_ms = self._clock.steady_ms() - _PATIENCE_MS
        return any(began_ms is not None and began_ms > late_ms for began_ms in [*self._began_ms.values()])

    def forget_others(self, tokens: AbstractSet[str]) -> None:
        """Forget the attempts of all switches but these."""
        for token in self._began_ms.keys() - tokens:
            self._began_ms.pop(token, None)
