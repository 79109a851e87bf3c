"""Check that the brokers of a channel hold the same view as the compactor, before the snapshot replaces the log."""

from __future__ import annotations

from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Renewed
from equipoise.channel.core.view import View


class Agreement:
    """Compares the digests in renewals with the view that folds them.

    A broker disagrees from its first differing renewal until one that agrees again. If it dies meanwhile, its view is gone.
    Only another broker's agreement then shows that its view was the wrong one.
    """

    def __init__(self, view: View) -> None:
        """`view` is the view that folds the records passed to `see`."""
        self._view = view
        self._parted: dict[int, tuple[str, int]] = {}  # By incarnation: broker and offset.

    def see(self, folded: Folded) -> None:
        """Check one record that was just folded."""
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
        """Which broker disagrees; None if none does."""
        if not self._parted:
            return None
        broker, offset = min(self._parted.values(), key=lambda who: who[1])
        return f"broker {broker} says at offset {offset} that its view is another than what the log folds to"
