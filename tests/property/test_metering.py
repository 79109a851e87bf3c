"""Whatever charges enclose, and whoever runs it: each step is charged once, to the innermost charge
around it, so the accounts add up to the CPU time of the steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.load.metering import Account, driven, follow_tasks_and_threads
from tests.load.cpu_clocks import CpuClocks, cpu_clocks

ACCOUNTS = 3
NOBODY = -1


class Wrong(Exception):
    """What a program raises."""


@dataclass(frozen=True)
class Use:
    """Use CPU time."""

    ns: int


@dataclass(frozen=True)
class Pause:
    """Let others run."""


@dataclass(frozen=True)
class Part:
    """Do parts: in a charge, as a task that is awaited or goes on to the end of the charge, in a
    thread, or with an error at the end.
    """

    how: str
    account: int
    parts: tuple[Use | Pause | Part, ...]


PARTS = st.recursive(
    st.builds(Use, st.integers(1, 1_000)) | st.just(Pause()),
    lambda parts: st.builds(
        Part,
        st.sampled_from(["charge", "task", "beside", "thread", "raise", "drive"]),
        st.integers(0, ACCOUNTS - 1),
        st.lists(parts, max_size=4).map(tuple),
    ),
    max_leaves=20,
)


@dataclass
class Run:
    """A program with its clocks and accounts."""

    clocks: CpuClocks
    accounts: tuple[Account, ...]

    async def all(self, parts: tuple[Use | Pause | Part, ...]) -> None:
        """Do parts, and then await the tasks that go on."""
        beside = list[asyncio.Task[None]]()
        for part in parts:
            match part:
                case Use():
                    self.clocks.use(part.ns)
                case Pause():
                    await asyncio.sleep(0)
                case Part("beside"):
                    beside.append(asyncio.create_task(self.all(part.parts)))
                case Part():
                    await self.one(part)
        await asyncio.gather(*beside)

    async def one(self, part: Part) -> None:
        """Do one part with others in it."""
        if part.how == "charge":
            with self.accounts[part.account].charge():
                await self.all(part.parts)
        elif part.how == "task":
            await asyncio.create_task(self.all(part.parts))
        elif part.how == "drive":
            await driven(self.all(part.parts))
        elif part.how == "thread":
            await asyncio.to_thread(self.in_thread, part)
        else:
            try:
                with self.accounts[part.account].charge():
                    await self.all(part.parts)
                    raise Wrong  # noqa: TRY301 - the charge is inside
            except Wrong:
                pass

    def in_thread(self, part: Part) -> None:
        """Do what needs no event loop, in a charge."""
        self.clocks.use(1)
        with self.accounts[part.account].charge():
            for each in part.parts:
                if isinstance(each, Use):
                    self.clocks.use(each.ns)


def expected(parts: tuple[Use | Pause | Part, ...], payer: int, found: Counter[int]) -> None:
    """Add what each account pays, by the places of the charges alone."""
    for part in parts:
        if isinstance(part, Use):
            found[payer] += part.ns
        elif isinstance(part, Part) and part.how == "thread":
            found[payer] += 1
            uses = tuple(each for each in part.parts if isinstance(each, Use))
            expected(uses, part.account, found)
        elif isinstance(part, Part):
            inside = part.account if part.how in {"charge", "raise"} else payer
            expected(part.parts, inside, found)


@given(st.lists(PARTS, max_size=6).map(tuple))
def test_each_step_is_charged_once(parts: tuple[Use | Pause | Part, ...]) -> None:
    """By one account, in any order of tasks, charges, errors and threads."""
    accounts = tuple(Account() for _ in range(ACCOUNTS))

    async def main(clocks: CpuClocks) -> None:
        follow_tasks_and_threads()
        await driven(Run(clocks, accounts).all(parts))

    with cpu_clocks() as clocks:
        asyncio.run(main(clocks))
        used_ns = clocks.now_ns()
    found = Counter[int]()
    expected(parts, NOBODY, found)
    assert [found[each] for each in range(ACCOUNTS)] == [each.cpu_ns for each in accounts]
    assert used_ns == sum(each.cpu_ns for each in accounts) + found[NOBODY]
