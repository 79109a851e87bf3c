"""What became of an unloaded bundle: a destination's refusal is named, and an operator's cancel is
no refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from equipoise.brokers.operations.outcomes import Outcomes
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.propose import Author
from equipoise.channel.core.records import AnyRecord
from tests.channels.folding import channel_with
from tests.channels.operating import FoldingPort


class Story:
    """A bundle of broker a, two brokers that may have it, and its outcomes from now on."""

    def __init__(self) -> None:
        self.channel = channel_with("a", "b", "c")
        self.outcomes = Outcomes(self.channel.view, (), log="")
        self.ids = {name: self.channel.incarnation(name) for name in ("a", "b", "c")}
        self.name = self.channel.bundle().name
        self.add("a", partial(propose.assign, owner=self.ids["a"]))
        self.add("a", propose.opened)
        self.outcomes = Outcomes(self.channel.view, [self.bundle], log="")

    @property
    def bundle(self) -> BundleEntry:
        return self.channel.view.bundles[self.name]

    def add(self, author: str, make: Callable[[Author, BundleEntry], AnyRecord]) -> None:
        """Have a broker write a record about the bundle, which the outcomes read."""
        folded = FoldingPort(self.channel).fold(make(self.channel.author(author), self.bundle))
        assert folded.verdict.accepted
        self.outcomes.heard(folded)

    def problem(self) -> str | None:
        """Why the bundle is where it is."""
        return self.outcomes.of(self.name, self.channel.view).problem


def test_a_refused_transfer_names_the_destination_and_its_reason() -> None:
    story = Story()
    story.add("a", partial(propose.transfer, destination=story.ids["b"]))
    story.add("b", partial(propose.refuse_transfer, problem="no room"))
    assert "b could not prepare it: no room" == story.problem()
    with pytest.raises(
        PeerError, match=r"came back to a, token .*: b could not prepare it: no room"
    ):
        story.outcomes.check(story.name, story.channel.view, destination=None)


def test_a_refused_assignment_names_the_destination_and_its_reason() -> None:
    story = Story()
    story.add("a", partial(propose.unload, reason="operator"))
    story.add("a", propose.released)
    story.add("a", partial(propose.assign, owner=story.ids["b"]))
    story.add("b", partial(propose.refuse, reason="no room"))
    assert "b refused it: no room" == story.problem()


def test_a_cancel_by_an_operator_is_no_refusal() -> None:
    story = Story()
    story.add("a", partial(propose.transfer, destination=story.ids["b"]))
    story.add("b", partial(propose.cancel, reason="operator"))
    story.add("a", partial(propose.transfer, destination=story.ids["c"]))
    story.add("c", propose.prepared)
    story.add("a", propose.hand_over)
    assert ("c", None) == (story.channel.view.live[story.bundle.owner or 0].broker, story.problem())
    story.outcomes.check(story.name, story.channel.view, destination="c")
