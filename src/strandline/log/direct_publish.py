"""A publish in one go, in the caller's thread: the usual case, without what other cases need.

It is for an open gate and a storage that stores at once. In every other case nothing is stored, and the caller
goes on with a `PublishAttempt`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from strandline.errors import NotFound, OutcomeUnknown, Sealed, StrandlineError
from strandline.log import preparation
from strandline.log.model import CatalogEntry, PublishReport
from strandline.log.preparation import Prepared
from strandline.log.publish_attempt import PreparedFor, PublishContext

log = logging.getLogger(__name__)


def publish_directly(
    context: PublishContext, name: str, items: Sequence[bytes], flow_id: str | None
) -> PublishReport | PreparedFor | None:
    """The report. If nothing is stored: what was prepared, or None if the publish was not started."""
    try:
        return store_directly(context, name, lambda: context.prepare(name, items, flow_id))
    except OutcomeUnknown as error:
        log.warning("the outcome of a publish is unknown: %s", error)
        return preparation.unknown_report(items)


def store_directly(
    context: PublishContext, name: str, prepare: Callable[[], tuple[CatalogEntry, Prepared | PublishReport]]
) -> PublishReport | PreparedFor | None:
    """The same for what `prepare` returns when the gate has been passed; OutcomeUnknown if the outcome is."""
    gate = context.node.gate(name)
    if not gate.pass_if_open():
        return None
    try:
        entry, prepared = prepare()
        if isinstance(prepared, PublishReport):
            return prepared
        timeline = entry.active
        try:
            placed = context.storages.get(timeline.storage_id).try_append(timeline.topic, prepared.batches)
        except (Sealed, NotFound):  # nothing is stored
            placed = None
        if placed is None:
            return entry.id, prepared
        return _report(prepared.outcome(placed, timeline.order))
    except Exception as error:
        if not isinstance(error, StrandlineError):
            log.exception("a publish failed")
        raise
    finally:
        gate.leave()


def _report(outcome: PublishReport | StrandlineError) -> PublishReport:
    if isinstance(outcome, StrandlineError):
        raise outcome
    return outcome
