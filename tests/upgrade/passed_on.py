"""A service whose state is the list of its owners so far, for brokers of any version.

`EQUIPOISE_TEST_OPENINGS` names the file that gets one line per opening.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import equipoise
from equipoise import Bundle, Deadline, Ownership, Peer
from equipoise.examples.counter import Counter

VERSION = str(Path(equipoise.__file__).resolve().parent.parent)
"""The folder that the broker's code is in."""

LARGE_BYTES = 200_000
"""More than a record takes, so the next owner fetches it over HTTP."""


class PassedOn(Counter):
    """The counter with one more thing: each owner adds its version to the state, and hands it
    over.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, list[str]] = {}

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Note the owners before this one, and why their list is missing, if it is."""
        bundle = ownership.bundle
        owners = json.loads(handover or b"[]")
        line = {
            "bundle": bundle.name,
            "token": ownership.token,
            "owners": owners,
            "owner": VERSION,
            "problem": ownership.handover_problem,
        }
        openings = os.open(
            os.environ["EQUIPOISE_TEST_OPENINGS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        os.write(openings, json.dumps(line).encode() + b"\n")
        os.close(openings)
        self._owners[bundle.name] = [*owners, VERSION]
        await super().open(ownership, handover)

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Return the owners. The state of the first bundle is too large for a record."""
        await super().close(bundle, moved_to, deadline)
        state = json.dumps(self._owners.pop(bundle.name)).encode()
        return state + b" " * LARGE_BYTES if bundle.low == 0 else state
