"""A TCP proxy that drops a request or an answer when a test asks for it."""

from __future__ import annotations

import contextlib
import socket
import threading


class LossyProxy:
    """Forwards bytes between clients and a server. It can drop one request or answer and close that connection."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lose: str | None = None
        self._marker = b""
        self._cut: tuple[socket.socket, socket.socket] | None = None
        self.lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, marker: bytes) -> None:
        """Forward the next request that contains these bytes, but drop its answer."""
        self._arm("answer", marker)

    def lose_request(self, marker: bytes) -> None:
        """Drop the next request that contains these bytes."""
        self._arm("request", marker)

    def _arm(self, what: str, marker: bytes) -> None:
        self.lost.clear()
        self._marker, self._lose = marker, what

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                if self._lose and self._marker in data:
                    what, self._lose = self._lose, None
                    if what == "request":
                        break
                    self._cut = (client, server)
                server.sendall(data)
        except OSError:
            pass
        self._hang_up(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                if self._cut == (client, server):
                    self._cut = None
                    break
                client.sendall(data)
        except OSError:
            pass
        self._hang_up(client, server)

    def _hang_up(self, *both: socket.socket) -> None:
        for one in both:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.lost.set()

    def close(self) -> None:
        self._listener.close()
