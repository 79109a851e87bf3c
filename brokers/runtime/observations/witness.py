"""Record when one broker serves each bundle, for an audit that does not trust the fold alone.

* A period begins when the service has opened a bundle under a good lease. It ends when the handle closes or the lease runs out.
* After a lapse it ends where the lease did, however late that is noticed: a stopped process served nothing.
* Work that passed its second check later extends it, so that an audit finds it.
* Work answered after a reported end is reported as a later end. No handle passes then, so this shows a defect.
* A namespace that serves on past a lease is served until its handle closes, and marked: only the token guards there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from equipoise.brokers.agent.effects import Abandon, Close, Effect, Reshaped
from equipoise.brokers.agent.events import Event, Opened
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.observations.observed import Ended, Served

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000

# Last ended periods that are checked for later answers, and the interval.
_OVER_MAX: Final = 256
_LOOK_MS: Final = 1_000


class Standing(Protocol):
    """What is read between steps: see `brokers.agent.agent.Agent`."""

    @property
    def lease(self) -> Lease:
        """The lease of the current incarnation."""
        ...

    def handle(self, bundle: str) -> Handle | None:
        """Return the handle of a bundle that is open or opening; None for any other."""
        ...


@dataclass(slots=True, kw_only=True)
class _Stretch:
    """A period of serving under one handle. `started_ns` is None while the lease has run out."""

    handle: Handle
    started_ns: int | None


@dataclass(slots=True, kw_only=True)
class _Over:
    """A period that was reported as over, and its end."""

    handle: Handle
    started_ns: int
    answered_ns: int
    ended: Ended


class Witness:
    """Records what one broker serves: at most one period for each bundle that is open here."""

    def __init__(self, *, log: str, broker: str, boot: str, clock: Clock, tell: Callable[[Served], None]) -> None:
        """`log` is the identity of the log, `boot` that of this run of the machine. `tell` takes each beginning and each end."""
        self._log = log
        self._broker = broker
        self._boot = boot
        self._clock = clock
        self._tell = tell
        self._stretches: dict[str, _Stretch] = {}
        self._has_lease = False
        self._over: deque[_Over] = deque(maxlen=_OVER_MAX)
        self._look_at_ms = 0

    def begun(self, effect: Effect) -> None:
        """Note an effect of the agent that closed handles."""
        if isinstance(effect, Close):
            self._end(effect.handle.bundle, "closed")
        elif isinstance(effect, Abandon):
            self._end(effect.bundle, "abandoned")
        elif isinstance(effect, Reshaped):
            for parent in effect.gone:
                self._end(parent.bundle, "reshaped")
            for child in effect.children:
                self._begin(child)

    def stepped(self, event: Event, agent: Standing) -> None:
        """Note an event of the agent: a bundle may be open, or the lease over or good again."""
        now = self._clock.now()
        if now.boot_ms >= self._look_at_ms:
            self._look_at_ms = now.boot_ms + _LOOK_MS
            self._look_back()
        has_lease = agent.lease.good(now)
        if has_lease is not self._has_lease:
            self._has_lease = has_lease
            self._lease_changed()
        if isinstance(event, Opened) and event.problem is None:
            handle = agent.handle(event.bundle)
            if handle is not None and handle.is_open:
                self._begin(handle)

    def stopped(self) -> None:
        """End all periods, because the broker has ended."""
        for bundle in list(self._stretches):
            self._end(bundle, "stopped")
        self._look_back()

    def _lease_changed(self) -> None:
        """End periods when their lease ends, begin them again when it is good. A lost lease closes its handles."""
        if self._has_lease:  # Later answers belong to the periods that begin now.
            over = [one for one in self._over if one.ended != "lease_over" or one.handle.lease.lost]
            self._over = deque(over, maxlen=_OVER_MAX)
        for stretch in self._stretches.values():
            handle = stretch.handle
            if handle.lease.lost:
                continue
            if self._has_lease and stretch.started_ns is None:
                self._start(stretch)
            elif not self._has_lease and stretch.started_ns is not None and not handle.serves_on:
                self._say_end(stretch, "lease_over")
                stretch.started_ns = None

    def _begin(self, handle: Handle) -> None:
        stretch = self._stretches[handle.bundle] = _Stretch(handle=handle, started_ns=None)
        if handle.passes(self._clock.now()):
            self._start(stretch)

    def _start(self, stretch: _Stretch) -> None:
        stretch.started_ns = self._clock.boot_ns()
        self._say(stretch.handle, stretch.started_ns, answered_ns=None, ended=None)

    def _end(self, bundle: str, ended: Ended) -> None:
        stretch = self._stretches.pop(bundle, None)
        if stretch is not None and stretch.started_ns is not None:
            self._say_end(stretch, ended)

    def _say_end(self, stretch: _Stretch, ended: Ended) -> None:
        handle, now_ns = stretch.handle, self._clock.boot_ns()
        until_ns = now_ns if handle.serves_on else min(now_ns, _lease_ns(handle))
        assert stretch.started_ns is not None, "what has not begun does not end"
        over = _Over(handle=handle, started_ns=stretch.started_ns, answered_ns=max(until_ns, handle.answered_ns), ended=ended)
        self._say(handle, over.started_ns, answered_ns=over.answered_ns, ended=ended)
        self._over.append(over)

    def _look_back(self) -> None:
        for over in self._over:
            if over.handle.answered_ns > over.answered_ns:
                over.answered_ns = over.handle.answered_ns
                self._say(over.handle, over.started_ns, answered_ns=over.answered_ns, ended=over.ended)

    def _say(self, handle: Handle, started_ns: int, *, answered_ns: int | None, ended: Ended | None) -> None:
        is_past_lease = answered_ns is not None and handle.serves_on and answered_ns > _lease_ns(handle)
        self._tell(
            Served(
                log=self._log,
                broker=self._broker,
                incarnation=handle.lease.incarnation,
                bundle=handle.bundle,
                token=handle.token,
                boot=self._boot,
                started_ns=started_ns,
                answered_ns=answered_ns,
                lease_deadline_ns=_lease_ns(handle),
                ended=ended,
                by_token=handle.answered_by_token or is_past_lease,
                at_ms=self._clock.now().wall_ms,
                at_ns=self._clock.boot_ns(),
            )
        )


def _lease_ns(handle: Handle) -> int:
    return handle.lease.until_ms * _NANOSECONDS_PER_MILLISECOND
