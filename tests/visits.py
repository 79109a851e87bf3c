"""A service of the tests: it counts visits in memory, and hands the counts over."""

import json
from collections import Counter

from equipoise import Bundle, Deadline, Ownership, Peer, Service

NAMESPACE = "web/pages"


class Visits(Service):
    """Counts in memory. They move with their bundle from owner to owner, and are lost if the
    program dies.
    """

    def __init__(self) -> None:
        self.counts = Counter[str]()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Take over the former owner's counts."""
        self.counts.update(json.loads(handover or b"{}"))

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        """Hand over the counts of this bundle. Splits and merges of bundles need no extra code."""
        leaving = {
            page: count for page, count in self.counts.items() if bundle.contains(NAMESPACE, page)
        }
        for page in leaving:
            del self.counts[page]
        return json.dumps(leaving).encode()

    def visit(self, page: str) -> int:
        """Count one visit. Only the owner of the page does, under its ownership."""
        self.counts[page] += 1
        return self.counts[page]
