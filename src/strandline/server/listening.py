"""The port of a node: held by one process alone, and served by Granian.

Granian's own sockets have SO_REUSEPORT: a second process of the same user could listen on the same port, and the
kernel would spread connections over both. So the socket is made here and handed to Granian.
"""

from __future__ import annotations

import socket
from typing import Any

from granian import net
from granian.server.embed import Server
from starlette.types import ASGIApp

from strandline.errors import Unavailable


def bind(host: str, port: int) -> socket.socket:
    """A socket on that port, which refuses connections until `listen`. Unavailable if the port is in use."""
    bound = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        # Connections of a node that stopped may still be in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise _taken(host, port, error) from error
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Accept connections. Unavailable if another process that was bound to the port was first."""
    host, port = bound.getsockname()[:2]
    try:
        bound.listen(backlog)
    except OSError as error:
        raise _taken(host, port, error) from error


def _taken(host: str, port: int, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host"
    )


class GranianServer(Server):
    """Granian on a socket that listens already; `options` are those of Granian."""

    def __init__(self, app: ASGIApp, listening: socket.socket, **options: Any) -> None:
        host, port = listening.getsockname()[:2]
        super().__init__(app, address=host, port=port, **options)
        self._listening = listening

    def _init_shared_socket(self) -> None:
        untyped: Any = net  # the types of Granian are not complete
        # Granian closes the socket when it stops.
        self._shd = untyped.SocketHolder(self._listening.detach(), False, self.backlog)
