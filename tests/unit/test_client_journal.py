"""The journal's client reads lines, and notices an answer that is not complete."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import strandline
from strandline.errors import Damaged, Unavailable
from strandline.journal import Journal

LINE = b'{"seq_nr":%d,"payload":{"a":"\xe2\x80\xa8"},"tags":[],"timestamp":"2024-05-01T12:00:00.000Z"}\n'
PROBLEM = b'{"problem":{"title":"x","status":500,"detail":"bad disk","code":"damaged","partition":3}}\n'


@contextmanager
def answering(*parts: bytes, ends: bool) -> Iterator[Journal]:
    """A journal at a server that gives these parts, and then breaks the connection or ends the answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for part in parts:
                    client.sendall(b"%x\r\n%b\r\n" % (len(part), part))
                if ends:
                    client.sendall(b"0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        with strandline.connect(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=20) as remote:
            yield remote.journal("orders")


def test_lines_end_with_line_feeds_alone():
    """Other separators of lines may be in a text, and a part may end anywhere."""
    text = LINE % 1 + LINE % 2
    with answering(text[:9], text[9:70], text[70:], ends=True) as journal:
        found = [*journal.read("one")]
    assert [event.seq_nr for event in found] == [1, 2]
    assert found[0].payload.data.decode() == '{"a":"\u2028"}'
    assert found[0].timestamp_ms == 1_714_564_800_000


def test_an_answer_that_breaks_is_an_error():
    """After the events that arrived."""
    with answering(LINE % 1, LINE % 2, ends=False) as journal:
        events = journal.read("one")
        assert [next(events).seq_nr, next(events).seq_nr] == [1, 2]
        with pytest.raises(Unavailable):
            next(events)


def test_a_line_with_a_problem_is_its_error():
    with answering(LINE % 1, PROBLEM, ends=True) as journal:
        events = journal.read("one")
        assert next(events).seq_nr == 1
        with pytest.raises(Damaged, match="bad disk") as raised:
            next(events)
    assert raised.value.info["partition"] == 3
