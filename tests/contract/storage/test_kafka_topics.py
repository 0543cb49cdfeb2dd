"""Creating a Kafka topic while some brokers do not know it yet, which a real cluster cannot be made to do."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import confluent_kafka as ck
import pytest

from strandline.log.storage.kafka_topics import Replication, Topics

UNHEARD_OF = ck.KafkaException(ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART))


class Admin:
    """Answers with the given errors, one for each request, then with success."""

    def __init__(self, *, described: list[Exception], offsets: list[Exception]) -> None:
        self.described = described
        self.offsets = offsets

    def describe_cluster(self, **_: object) -> Future:
        return answer(SimpleNamespace(nodes=[1, 2, 3]))

    def create_topics(self, new, **_: object) -> dict:
        return {new[0].topic: answer(None)}

    def describe_topics(self, _names, **_: object) -> dict:
        return {"t": answer(SimpleNamespace(partitions=[SimpleNamespace(leader=1)]), self.described)}

    def list_offsets(self, places, **_: object) -> dict:
        return {place: answer(SimpleNamespace(offset=0), self.offsets) for place in places}


def answer(result: object, errors: list | None = None) -> Future:
    future: Future = Future()
    error = errors.pop(0) if errors else None
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future


@pytest.mark.parametrize(
    ("described", "offsets"),
    [([UNHEARD_OF], []), ([None, UNHEARD_OF], []), ([], [UNHEARD_OF, UNHEARD_OF])],
    ids=["the one that describes it", "another one that does", "its leader"],
)
def test_a_broker_that_has_not_heard_of_a_new_topic_is_waited_for(described, offsets):
    """`create` waits until every asked broker knows the new topic."""
    admin = Admin(described=list(described), offsets=list(offsets))
    Topics(admin, Replication(), 1_000_000).create("t", 1, 1_000)
    assert (admin.described, admin.offsets) == ([], [])
