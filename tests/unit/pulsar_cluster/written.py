"""Messages as the brokers of a Pulsar cluster write them, for the tests of the channel's
readers.
"""

from __future__ import annotations

import json
from typing import Self

from equipoise.pulsar_cluster.reading import Read

BUNDLE = "public/default/0x00000000_0x40000000"
LEFT, RIGHT = "0x00000000_0x20000000", "0x20000000_0x40000000"
SECOND_MS = 1_000


class Written:
    """A channel, message by message. Each step is a second after the one before it, unless
    `wait_ms` says otherwise.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.now_ms = 1_795_445_173_000
        self.versions: dict[str, int] = {}

    def add(
        self, bundle: str, by: str, state: str | None, wait_ms: int = SECOND_MS, **fields: object
    ) -> Self:
        """Add one message: `to`, `source`, and any other field of the record. The version follows
        the one before, unless it is given.
        """
        self.now_ms += wait_ms
        value = None
        if state is None:
            self.versions.pop(bundle, None)
        else:
            version = fields.pop("version", self.versions.get(bundle, 0) + 1)
            assert isinstance(version, int)
            self.versions[bundle] = max(version, self.versions.get(bundle, 0))
            names = {
                "dstBroker": fields.pop("to", None),
                "sourceBroker": fields.pop("source", None),
            }
            document = {
                "state": state,
                "force": False,
                "timestamp": self.now_ms,
                "versionId": version,
                **names,
                **fields,
            }
            value = json.dumps(
                {name: each for name, each in document.items() if each is not None}
            ).encode()
        entry = len(self.reads)
        self.reads.append(
            Read(f"7:{entry}", str(entry).encode(), bundle, f"producer-{by}", self.now_ms, value)
        )
        return self

    def later(self, ms: int) -> Self:
        """Let time pass before the next step."""
        self.now_ms += ms
        return self

    def garble(self, bundle: str) -> Self:
        """A value that is no record."""
        self.add(bundle, "nobody", "Owned")
        self.reads[-1] = self.reads[-1]._replace(value=b"?")
        return self

    def assign(self, bundle: str, to: str, by: str | None = None) -> Self:
        """A lookup: a broker chooses an owner, which takes the bundle."""
        self.add(bundle, by or to, "Assigning", to=to)
        return self.add(bundle, to, "Owned", to=to)

    def transfer(
        self, bundle: str, source: str, to: str, by: str = "leader:80", wait_ms: int = SECOND_MS
    ) -> Self:
        """A move with a destination."""
        self.add(bundle, by, "Releasing", to=to, source=source)
        self.add(bundle, source, "Assigning", wait_ms, to=to, source=source)
        return self.add(bundle, to, "Owned", to=to, source=source)

    def unload(self, bundle: str, owner: str, *, force: bool = False) -> Self:
        """A move without a destination."""
        self.add(bundle, "leader:80", "Releasing", source=owner, force=force)
        return self.add(bundle, owner, "Free", source=owner)

    def splitting(self, bundle: str, owner: str, *children: str) -> Self:
        """The owner begins to split a bundle into children."""
        return self.add(
            bundle,
            owner,
            "Splitting",
            source=owner,
            splitServiceUnitToDestBroker=dict.fromkeys(children),
        )

    def split(self, bundle: str, owner: str, *children: str) -> Self:
        """The owner splits a bundle into children."""
        self.splitting(bundle, owner, *children)
        for child in children:
            self.add(f"{bundle.rpartition('/')[0]}/{child}", owner, "Owned", to=owner)
        return self.add(bundle, owner, "Deleted", source=owner).add(bundle, owner, None)


def a_life() -> Written:
    """A bundle is assigned, moved, unloaded, assigned again and split."""
    written = Written().assign(BUNDLE, "a:80", by="b:80").transfer(BUNDLE, "a:80", "b:80")
    return written.unload(BUNDLE, "b:80").assign(BUNDLE, "a:80").split(BUNDLE, "a:80", LEFT, RIGHT)
