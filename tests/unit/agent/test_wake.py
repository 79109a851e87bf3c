"""Wakes: an agent that is woken only when it asks for it misses nothing, and sleeps at rest."""

from __future__ import annotations

import pytest

from equipoise.brokers.agent.events import Event, Tick
from tests.scenarios.language import perform
from tests.scenarios.stage import Process, Stage

# A renewal a second, and a look at the silence of others when it could be long enough; the rest is
# what a move costs.
_IDLE_WAKES_PER_SECOND_MAX = 2

# The slowest of an agent's own rounds: what is retried, and what waits for others, is looked at
# again this often.
_ROUND_MS = 250


class CountingStage(Stage):
    """A stage that counts the wakes of each broker, and notes the time of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes: dict[str, int] = {}
        self.times_ms: list[int] = []
        self.log.on_append(lambda: self.times_ms.append(self.now_ms))

    def check_step(self, process: Process, event: Event) -> None:
        if isinstance(event, Tick):
            self.wakes[process.host.name] = self.wakes.get(process.host.name, 0) + 1
        super().check_step(process, event)


class PendingStage(CountingStage):
    """A stage that wakes every broker every millisecond."""

    def advance(self, duration_ms: int) -> None:
        for _ in range(duration_ms):
            self.now_ms += 1
            for host in self.hosts.values():
                if host.process is not None and not host.process.is_paused:
                    host.process.deliver(Tick())
            self.settle()


def play(stage: CountingStage, commands: str) -> CountingStage:
    for command in commands.strip().splitlines():
        perform(stage, command.strip())
    return stage


STORIES = {
    "renewals": (
        """
        brokers a b
        advance 3200ms
    """
    ),
    "a death": (
        """
        cluster a b c with 4 bundles
        advance 300ms
        crash a
        advance 4200ms
    """
    ),
    "two deaths": (
        """
        cluster a b c d with 4 bundles
        advance 300ms
        crash a
        advance 700ms
        crash b
        advance 4s
    """
    ),
    "an outage": (
        """
        cluster a b with 2 bundles
        advance 700ms
        outage
        advance 2s
        outage over
        advance 1500ms
    """
    ),
    "an outage in the midst of moves": (
        """
        cluster a b with 4 bundles
        service a waits close
        unload 00_40 by admin
        unload 40_80 by admin
        advance 700ms
        outage
        service a answers
        service a answers
        advance 2s
        outage over
        advance 1500ms
    """
    ),
    "what nobody takes": (
        """
        brokers a b
        service a refuses prepare
        service b refuses open
        namespace t/n with 1 bundle by admin
        advance 2500ms
    """
    ),
    "a slow service": (
        """
        timing prepare_ms 900ms
        timing close_ms 700ms
        timing patience_ms 1500ms
        cluster a b with 2 bundles
        service b hangs prepare
        transfer 00_80 to b by admin
        advance 1s
        service a hangs close
        unload 00_80 by admin
        advance 1s
        service b hangs cut
        split 80_ff by admin
        advance 2s
    """
    ),
    "a lost directory": (
        """
        cluster a with 2 bundles
        restart a with lost directory
        advance 4500ms
    """
    ),
    "leaving": (
        """
        cluster a b with 4 bundles
        advance 300ms
        hold a
        leave a
        advance 400ms
        lose a
        release a
        advance 1500ms
    """
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_broker_that_wakes_only_when_due_misses_nothing(name: str) -> None:
    """The log gets the same records as with constant wakes: at most a round later, membership at
    once.
    """
    asked, pending = play(CountingStage(), STORIES[name]), play(PendingStage(), STORIES[name])
    assert pending.records == asked.records
    late = []
    for line, due_ms, came_ms in zip(
        pending.records, pending.times_ms, asked.times_ms, strict=True
    ):
        is_membership = any(word in line for word in ("  join ", "  renew ", "  down "))
        if not due_ms <= came_ms <= due_ms + (0 if is_membership else _ROUND_MS):
            late.append((line, due_ms, came_ms))
    assert [] == late
    assert sum(pending.wakes.values()) > 10 * sum(asked.wakes.values())


@pytest.mark.parametrize(
    "before",
    [
        "cluster a b c with 4 bundles",
        "cluster a b c with 4 bundles\nleave c\nadvance 1s",
        "cluster a b c with 4 bundles\ncrash a\nadvance 4s",
        (
            "cluster a b c with 4 bundles\ntransfer 00_40 to b by admin\nsplit 40_80 by"
            " admin\nadvance 1s"
        ),
    ],
)
def test_a_broker_at_rest_wakes_twice_a_second(before: str) -> None:
    """Also after deaths, moves and splits."""
    stage = play(CountingStage(), before)
    stage.wakes.clear()
    perform(stage, "advance 20s")
    assert {} == {
        name: count
        for name, count in stage.wakes.items()
        if count > 20 * _IDLE_WAKES_PER_SECOND_MAX + 1
    }
