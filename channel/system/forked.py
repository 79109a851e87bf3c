"""Keep a broker's lock, ports and connections from the children that its process forks.

A child of `os.fork`, as of `ProcessPoolExecutor` with the start method fork, has all descriptors of
its parent. A lock, a port or the connection of a client would outlive the broker in such a child:
the next broker could not start, and clients would wait for a dead one. Programs that the process
runs keep none: Python closes its descriptors when another program begins.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

_files: Final[set[int]] = set()
_listening: Final[WeakSet[socket.socket]] = WeakSet()

# Held while a descriptor is made, and across each fork: no child has one that is not listed yet.
_making: Final = threading.Lock()


def open_file(path: Path, flags: int, mode: int) -> int:
    """As `os.open`. Children do not get the descriptor, nor a lock of it."""
    with _making:
        descriptor = os.open(path, flags, mode)
        _files.add(descriptor)
    return descriptor


def close_file(descriptor: int) -> None:
    """Close what `open_file` has opened."""
    with _making:
        _files.discard(descriptor)
        os.close(descriptor)


def new_socket(family: socket.AddressFamily) -> socket.socket:
    """Return a stream socket for listening. Children get neither it nor the connections to its
    address.
    """
    with _making:
        listening = socket.socket(family, socket.SOCK_STREAM)
        _listening.add(listening)
    return listening


def _let_go() -> None:
    """Replace each such descriptor by one of nothing, in a child. Its number stays in use: the
    parent's objects may close it here later.
    """
    _making.release()
    addresses = {_address(open_socket) for open_socket in _listening if open_socket.fileno() >= 0}
    if not (_files or addresses):
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (*_files, *(_sockets_at(addresses) if addresses else ())):
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    _files.clear()


def _sockets_at(addresses: set[object]) -> Iterator[int]:
    """Yield the sockets that listen at an address, or were accepted there. Servers and event loops
    have copies of their own.
    """
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # It is no socket, or the one that listed the folder.
            found = socket.socket(fileno=descriptor)
            try:
                if _address(found) in addresses:
                    yield descriptor
            finally:
                found.detach()


def _address(of: socket.socket) -> object:
    """Return what the sockets of one port have in common: its number, with any host; the path or
    name of a Unix socket.
    """
    address = of.getsockname()
    return address[1] if of.family in (socket.AF_INET, socket.AF_INET6) else address


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_let_go)
