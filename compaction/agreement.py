"""Whether those who write a channel have seen the same view as the compactor: what they did not must not take the log's place.

May live here: `Agreement`, fed with what is folded.
"""

from __future__ import annotations

from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Renewed
from equipoise.channel.core.view import View


class Agreement:
    """Compares the digests that renewals bear with the view that folds them.

    A broker disagrees from the first renewal that does until one that agrees again. One that dies meanwhile took its view
    with it, but only somebody else's agreement shows that it was that view which was wrong.
    """

    def __init__(self, view: View) -> None:
        """`view` is the one that folds what this is shown."""
        self._view = view
        self._parted: dict[int, tuple[str, int]] = {}  # By incarnation: who, and at which offset.

    def see(self, folded: Folded) -> None:
        """Take in one record that was folded just now."""
        record = folded.record
        if type(record) is not Renewed or folded.verdict.reason is not None or record.incarnation is None:
            return
        if folded.verdict.diverged:
            self._parted[record.incarnation] = record.publisher, folded.offset
        elif self._parted:
            live = self._view.live
            parted = self._parted.items()
            self._parted = {incarnation: who for incarnation, who in parted if incarnation in live and incarnation != record.incarnation}

    @property
    def problem(self) -> str | None:
        """Who disagrees; None if nobody does."""
        if not self._parted:
            return None
        broker, offset = min(self._parted.values(), key=lambda who: who[1])
        return f"broker {broker} says at offset {offset} that its view is another than what the log folds to"
