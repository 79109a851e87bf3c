"""What must hold after every command of a story, whatever the story is about.

May live here: one function for each check, over the hosts of a stage and its log. Coverage and tokens are checked by the
simulation's own checkers, record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from equipoise.brokers.agent.handle import Handle
from equipoise.brokers.balancing.namespace_policies import serves_on
from equipoise.brokers.testing.shared_log import SharedLog
from equipoise.channel.core.snapshot import to_bytes
from tests.scenarios.host import Host, Process


def one_owner(hosts: Sequence[Host]) -> None:
    """No two handles pass the check for one point of the hash space, each by the clocks of its own machine.

    What serves on past its lease, because its namespace says so, is left out: there the token guards.
    """
    passing = [found for host in hosts if host.process is not None for found in _passing(host, host.process)]
    # In order of the hash space, what overlaps at all overlaps with its neighbour.
    passing.sort(key=lambda found: (found[1].namespace, found[1].low, found[0]))
    for (one_host, one), (other_host, other) in pairwise(passing):
        apart = one.namespace != other.namespace or one.high <= other.low
        assert apart, f"{one_host} and {other_host} both serve: {one}, {other}"


def _passing(host: Host, process: Process) -> list[tuple[str, Handle]]:
    now = host.now()
    passing = [handle for handle in process.given if handle.passes(now)]
    view = process.agent.view
    return [(host.name, handle) for handle in passing if handle.lease.good(now) or not serves_on(view, handle.namespace)]


def one_operation(process: Process) -> None:
    """A service takes no second operation of a bundle before the agent has the answer to the first."""
    for bundle, under_way in process.service.under_way.items():
        assert len(under_way) <= 1, f"{process.host.name} is to {under_way[1].verb} {bundle}, and is not done with {under_way[0]}"


def no_hurry(process: Process) -> None:
    """A broker that has just done what was due does not ask to be woken at once, or it would never rest."""
    now_ms, wake_at_ms = process.host.now().boot_ms, process.agent.wake_at_ms
    assert wake_at_ms > now_ms, f"{process.host.name} asks to be woken at {wake_at_ms}, and it is {now_ms}"


def one_view(hosts: Sequence[Host], log: SharedLog) -> None:
    """Every broker's view is what the log folds to from its beginning, up to where that broker has read, byte for byte."""
    processes = [host.process for host in hosts if host.process is not None and not host.process.is_corrupt]
    duplicate = log.reader()
    for read in range(len(log.entries) + 1):
        if read:
            duplicate.feed(log.entries[read - 1])
        for process in processes:
            if process.read == read:
                assert to_bytes(duplicate.view) == to_bytes(process.agent.view), f"{process.host.name} holds another view than the log"
