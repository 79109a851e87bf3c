"""A broker's HTTP port, whose answers a test scripts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Script = Callable[[socket.socket, threading.Event], None]
"""Answers the request of one connection. The event is set when the broker must end."""


class Broker:
    """A port where the script answers every connection, one after another, until the end of `with`.
    `asked`: the requests so far.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asked: list[str] = []
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        socket.create_connection(self._listening.getsockname()).close()
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                if self._over.is_set():
                    return
                asked = connection.recv(65_536)
                self.asked.append(asked.decode().split("\r\n", 1)[0].removesuffix(" HTTP/1.1"))
                self._script(connection, self._over)


def answering(status: int, body: str = "", headers: str = "") -> Script:
    """Give every request this answer."""
    text = f"HTTP/1.1 {status} Said\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}"
    return lambda connection, _: connection.sendall(text.encode())


def closed_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
