"""Inject faults into machines, processes and the log, at random or at a set time."""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.simulation.clock import MICROSECONDS_PER_MS
from tests.simulation.courier import Link
from tests.simulation.faults import (
    Crash,
    CutOff,
    Faults,
    Outage,
    Pause,
    Trouble,
    WallJump,
)
from tests.simulation.host import Host
from tests.simulation.parts import Parts

# Between two outages all renew their leases. Without it they would be one that is longer than any
# of the scenario.
_BACK_MS: Final = 3_000


class Troubles:
    """Injects troubles until `stop`, and restarts processes that end."""

    def __init__(self, parts: Parts, hosts: list[Host], links: list[Link]) -> None:
        """Take the shared parts. `links` are the links to the log that belong to no host; outages
        cut them, too.
        """
        self._parts = parts
        self._hosts = {host.name: host for host in hosts}
        self._links = links
        self._stopped = False
        self._next_outage_us = 0

    def begin(self) -> None:
        """Schedule the troubles."""
        parts = self._parts
        for scheduled in parts.faults.scheduled:
            parts.schedule.at(
                scheduled.at_ms * MICROSECONDS_PER_MS, partial(self._inject, scheduled.trouble)
            )
        for host in self._hosts.values():
            host.supervisor = self._restart
            self._await_trouble(host)
        self._await_outage()

    def stop(self) -> None:
        """Inject nothing more, and end all lasting troubles."""
        self._stopped = True
        for link in self._links:
            link.up_at_us = min(link.up_at_us, self._parts.schedule.now_us)
        for host in self._hosts.values():
            host.resume()
            host.reconnect()

    def _restart(self, host: Host) -> None:
        """Restart a process that has ended unexpectedly."""
        parts = self._parts
        back_after_ms = parts.chance.long_within(parts.faults.back_after_ms)
        parts.schedule.after(back_after_ms * MICROSECONDS_PER_MS, host.start)

    def _await_trouble(self, host: Host) -> None:
        parts, every_ms = self._parts, self._parts.faults.trouble_every_ms
        if every_ms and not self._stopped:
            parts.schedule.after(
                parts.chance.about(every_ms) * MICROSECONDS_PER_MS, partial(self._trouble, host)
            )

    def _trouble(self, host: Host) -> None:
        if not self._stopped:
            self._inject(self._draw(host.name, self._parts.faults))
            self._await_trouble(host)

    def _await_outage(self) -> None:
        parts, every_ms = self._parts, self._parts.faults.outage_every_ms
        if every_ms and not self._stopped:
            parts.schedule.after(parts.chance.about(every_ms) * MICROSECONDS_PER_MS, self._outage)

    def _outage(self) -> None:
        if self._stopped:
            return
        outage = Outage(for_ms=self._parts.chance.long_within(self._parts.faults.outage_ms))
        now_us = self._parts.schedule.now_us
        if now_us >= self._next_outage_us:
            self._next_outage_us = now_us + (outage.for_ms + _BACK_MS) * MICROSECONDS_PER_MS
            self._inject(outage)
        self._await_outage()

    def _draw(self, host: str, faults: Faults) -> Trouble:
        chance = self._parts.chance
        kinds = (
            ("crash", faults.crash_weight),
            ("lose directory", faults.lose_directory_weight),
            ("pause", faults.pause_weight),
            ("hidden pause", faults.hidden_pause_weight),
            ("cut off", faults.cut_off_weight),
            ("wall jump", faults.wall_jump_weight),
        )
        match chance.by_weight(kinds):
            case "crash":
                return Crash(host=host, back_after_ms=chance.long_within(faults.back_after_ms))
            case "lose directory":
                return Crash(
                    host=host,
                    back_after_ms=chance.long_within(faults.back_after_ms),
                    loses_directory=True,
                )
            case "pause":
                return Pause(host=host, for_ms=chance.long_within(faults.pause_ms))
            case "hidden pause":
                return Pause(host=host, for_ms=chance.long_within(faults.pause_ms), hidden=True)
            case "cut off":
                return CutOff(
                    host=host,
                    for_ms=chance.long_within(faults.cut_off_ms),
                    reconnect_ms=chance.within(faults.reconnect_ms),
                )
            case _:
                return WallJump(host=host, by_ms=chance.within(faults.wall_jump_ms))

    def _inject(self, trouble: Trouble) -> None:
        parts = self._parts
        schedule, story = parts.schedule, parts.story
        match trouble:
            case Crash():
                self._crash(trouble)
            case Pause():
                self._hosts[trouble.host].pause(
                    trouble.for_ms * MICROSECONDS_PER_MS, hidden=trouble.hidden
                )
            case CutOff():
                story.say(trouble.host, "is cut off from the log for {} ms", trouble.for_ms)
                self._hosts[trouble.host].link.cut_until(
                    schedule.now_us + (trouble.for_ms + trouble.reconnect_ms) * MICROSECONDS_PER_MS
                )
            case Outage():
                story.say("log", "OUTAGE for {} ms", trouble.for_ms)
                end_us = schedule.now_us + trouble.for_ms * MICROSECONDS_PER_MS
                for link in (*self._links, *(host.link for host in self._hosts.values())):
                    link.cut_until(end_us + parts.chance.microseconds(parts.faults.reconnect_ms))
            case WallJump():
                story.say(trouble.host, "has its wall clock set by {} ms", trouble.by_ms)
                self._hosts[trouble.host].clock.set_wall(trouble.by_ms * MICROSECONDS_PER_MS)

    def _crash(self, trouble: Crash) -> None:
        host = self._hosts[trouble.host]
        host.crash("killed")
        if trouble.loses_directory:
            host.lose_directory()
        if trouble.back_after_ms is not None:
            self._parts.schedule.after(trouble.back_after_ms * MICROSECONDS_PER_MS, host.start)
