"""Followers that come, go and append in any order: each is delivered the log from its position on, each entry once, in order.

May live here: what always holds of the seats of one log thread, and the strategy for what their hosts do.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX, Entry
from equipoise.channel.log.append_queue import Appended, NotAppended
from equipoise.channel.log.memory_log import MemoryLog
from tests.log_host import LOG_NAMES, Host
from tests.troubled_log import TroubledLog


@dataclass(frozen=True, kw_only=True)
class Join:
    """One more follower, from this share of the log on."""

    share: float


@dataclass(frozen=True, kw_only=True)
class Leave:
    """One follower less, whichever this is modulo those who are there."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Append:
    """Records of one follower, whichever this is modulo those who are there."""

    number: int
    records: int


@dataclass(frozen=True, kw_only=True)
class Write:
    """Records of another process."""

    records: int


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Let the loop take what the thread has brought by now."""


Step = Join | Leave | Append | Write | Turn

STEPS = st.lists(
    st.one_of(
        st.builds(Join, share=st.floats(0, 1)),
        st.builds(Leave, number=st.integers(0, 9)),
        st.builds(Append, number=st.integers(0, 9), records=st.integers(1, 40)),
        st.builds(Write, records=st.integers(1, 600)),
        st.builds(Turn),
    ),
    max_size=12,
)


@dataclass(kw_only=True)
class Follower(Host):
    """A host, and what it appended."""

    appended: list[bytes] = field(default_factory=list)

    @property
    def outcomes(self) -> list[Appended | NotAppended]:
        """What it was told of its records so far, in order."""
        return [told for told in self.told if isinstance(told, Appended | NotAppended)]


class Play:
    """One thread, and those who follow by it; the first one stays to the end, so that the thread does too."""

    def __init__(self) -> None:
        self.log = TroubledLog(name=next(LOG_NAMES))
        self.here = [Follower(log=self.log)]
        self.here[0].start()
        self.left: list[Follower] = []
        self.numbers = itertools.count()

    async def step(self, step: Step) -> None:
        """Do one thing."""
        match step:
            case Join(share=share):
                position = FIRST_OFFSET + int(share * self.here[0].writer.end())
                self.here.append(Follower(log=self.log, beside=self.here[0], position=position))
                self.here[-1].start()
            case Leave(number=number) if len(self.here) > 1:
                self.left.append(self.here.pop(1 + number % (len(self.here) - 1)))
                await self.left[-1].stop()
            case Append(number=number, records=records):
                follower = self.here[number % len(self.here)]
                for _ in range(records):
                    follower.appended.append(b"%d" % next(self.numbers))
                    follower.seat.append(follower.appended[-1], follower.tell)
            case Write(records=records):
                self.here[0].write(*[b"of another process"] * records)
            case _:
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Wait until those who are there have been told and delivered all, and stop."""
        for follower in self.here:
            await follower.until(partial(lambda follower: len(follower.appended) == len(follower.outcomes), follower))
        end = self.log.end()
        for follower in self.here:
            await follower.until(partial(lambda follower: len(follower.entries) == end + 1 - follower.position, follower))
        for follower in reversed(self.here):
            await follower.stop()


def check(follower: Follower, expected: Sequence[Entry]) -> None:
    """What always holds of one who was delivered what is `expected`, and appended something or nothing."""
    assert list(expected) == follower.entries
    assert len(follower.appended) == len(follower.outcomes)
    for record, outcome in zip(follower.appended, follower.outcomes, strict=True):
        if isinstance(outcome, Appended) and record in follower.told:
            assert Entry(outcome.offset, record) in follower.entries
            assert follower.told.index(outcome) < follower.told.index(record)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_everybody_gets_the_log(steps: Sequence[Step]) -> None:
    """Who stays gets all from its position on, who leaves a prefix of that; of each record its author hears before it is read."""

    async def play() -> tuple[Play, Sequence[Entry]]:
        played = Play()
        log = MemoryLog(name=played.log.name)  # Keeps what stands on it when the thread has closed its handle.
        for step in steps:
            await played.step(step)
        await played.end()
        return played, log.read(FIRST_OFFSET, limit=READ_ENTRIES_MAX) if log.end() else ()

    played, log = asyncio.run(play())
    for follower in played.here:
        check(follower, log[follower.position - FIRST_OFFSET :])
        assert all(isinstance(outcome, Appended) for outcome in follower.outcomes)
    for follower in played.left:
        check(follower, log[follower.position - FIRST_OFFSET :][: len(follower.entries)])
