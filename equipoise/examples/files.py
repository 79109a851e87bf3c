"""A service with state of any size: one file for each bundle, which streams to the bundle's next
owner.

Memory stays small on both sides: a chunk is read when the next owner has written the one before.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from equipoise import Bundle, Deadline, Ownership, Peer, Service

CHUNK_BYTES = 256 * 1024


class Files(Service):
    """Append-only files. They cannot be cut or joined, so switch splits and merges off for their
    namespace.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Of each bundle, the ownership under which its file was written last.
        self.tokens: dict[str, int] = {}

    def path(self, bundle: str) -> Path:
        """Return the file of a bundle."""
        # One file for each name: `a/b_c` and `a_b/c` are two.
        return self.folder / quote(bundle, safe="")

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Receive the former owner's file beside our own, and let it take its place once it is
        whole. If none comes, keep our own.
        """
        name = ownership.bundle.name
        # The same token: the next owner died first, and the bundle is back.
        if self.tokens.get(name) != ownership.token:
            arriving, has_come = self.path(name + ".arriving"), False
            with await asyncio.to_thread(arriving.open, "wb") as file:
                # Raises `PeerError` if the file does not come whole: the bundle is refused.
                async for chunk in ownership.stream():
                    has_come = True
                    await asyncio.to_thread(file.write, chunk)
            if has_come:
                await asyncio.to_thread(arriving.replace, self.path(name))
            else:
                # No broker owned the bundle before, or its owner died: perhaps this program itself,
                # which has started again.
                await asyncio.to_thread(arriving.unlink)
        self.tokens[name] = ownership.token

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Return nothing: the next owner streams the file."""
        return None

    async def fetch(self, bundle: Bundle, token: int) -> AsyncIterator[bytes] | None:
        """Return the chunks of a file that was closed here. This is called again after a broken
        connection.
        """
        path = self.path(bundle.name)
        return self._chunks(path) if path.exists() else None

    @staticmethod
    async def _chunks(path: Path) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(path.open, "rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk

    def append(self, ownership: Ownership, key: str, line: str) -> None:
        """Append a line. Raises `OwnershipLost`, possibly after the line was written."""
        with ownership.begin(key), self.path(ownership.bundle.name).open("a") as file:
            file.write(f"{key} {line}\n")
