"""The recorder of serving: which periods it reports, and how each ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import pytest

from equipoise.brokers.agent.effects import Abandon, Close, Reshaped
from equipoise.brokers.agent.events import Opened, Tick
from equipoise.brokers.agent.handle import Handle, Lease
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.observations.recorder import ServingRecorder
from equipoise.brokers.runtime.observations.writer import Served
from equipoise.brokers.runtime.service import Ownership, OwnershipLost
from equipoise.brokers.testing.virtual_member import VirtualClock
from equipoise.channel.core.ranges import HASH_MAX, bundle_name

LEFT, RIGHT = bundle_name("t/n", 0, HASH_MAX // 2), bundle_name("t/n", HASH_MAX // 2, HASH_MAX)
WHOLE = bundle_name("t/n", 0, HASH_MAX)
LEASE_MS = 3_000
WALL_MS = 1_700_000_000_000


@dataclass
class Broker:
    """One broker as its recorder sees it. A test sets its lease and handles."""

    clock: VirtualClock = field(
        default_factory=lambda: VirtualClock(boot_ms=1_000, ahead_ms=WALL_MS)
    )
    lease: Lease = field(
        default_factory=lambda: Lease(incarnation=7, skew_max_ms=500, attention_ms=60_000)
    )
    handles: dict[str, Handle] = field(default_factory=dict)
    served: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder = ServingRecorder(
            log="log", broker="b", boot="boot", clock=self.clock, report=self.served.append
        )
        self.renew()

    def handle(self, bundle: str) -> Handle | None:
        return self.handles.get(bundle)

    def tick(self, boot_ms: int) -> None:
        """Set the time, and take a step."""
        self.clock.boot_ms = boot_ms
        self.recorder.stepped(Tick(), self)

    def renew(self) -> None:
        """Renew the lease now."""
        self.lease.renew(decided=self.clock.now(), lease_ms=LEASE_MS)
        self.lease.attend(self.clock.now())
        self.recorder.stepped(Tick(), self)

    def open(
        self,
        bundle: str = LEFT,
        *,
        token: int = 5,
        serves_on: bool = False,
        problem: str | None = None,
    ) -> Handle:
        """Have the service open a bundle, or fail to."""
        handle = self.new_handle(bundle, token)
        handle.serves_on, handle.is_open = serves_on, problem is None
        self.recorder.stepped(Opened(bundle=bundle, problem=problem), self)
        return handle

    def new_handle(self, bundle: str, token: int = 5) -> Handle:
        handle = self.handles[bundle] = Handle(
            bundle=bundle, namespace="t/n", low=0, high=HASH_MAX, token=token, lease=self.lease
        )
        return handle

    def close(self, handle: Handle) -> None:
        """Release a bundle."""
        handle.is_open = False
        self.recorder.carried_out(Close(handle=handle, moved_to=None, deadline_ms=0))

    @property
    def reported(self) -> list[Report]:
        """Return the reports in order: the reason of the end (None at the beginning), the beginning
        and the end in ms.
        """
        million = 1_000_000
        return [
            (
                each.ended,
                each.started_ns // million,
                None if each.answered_ns is None else each.answered_ns // million,
            )
            for each in self.served
        ]


def test_a_period_is_reported_at_its_beginning_and_its_end() -> None:
    """With token, lease, and one moment of both clocks."""
    broker = Broker()
    handle = broker.open()
    broker.clock.boot_ms = 1_500
    broker.renew()
    broker.clock.boot_ms = 1_700
    broker.close(handle)
    begun, ended = (orjson.loads(orjson.dumps(each)) for each in broker.served)
    always = {
        "log": "log",
        "broker": "b",
        "incarnation": 7,
        "bundle": LEFT,
        "token": 5,
        "boot": "boot",
        "by_token": False,
    }
    assert {
        **always,
        "started_ns": 1_000_000_000,
        "answered_ns": None,
        "lease_deadline_ns": 4_000_000_000,
        "ended": None,
        "at_ms": WALL_MS + 1_000,
        "at_ns": 1_000_000_000,
    } == begun
    assert {
        **always,
        "started_ns": 1_000_000_000,
        "answered_ns": 1_700_000_000,
        "lease_deadline_ns": 4_500_000_000,
        "ended": "closed",
        "at_ms": WALL_MS + 1_700,
        "at_ns": 1_700_000_000,
    } == ended


Report = tuple[str | None, int, int | None]

# Steps of a broker, and its reports: the reason of each end (None at a beginning), and both times.
STORIES: dict[str, tuple[str, list[Report]]] = {
    "a failed opening is no period": ("open left failing, close left", []),
    "nor is one that is closed before it has opened": ("new left, opened left, opened right", []),
    "a process that was stopped served until its lease ended, however late it reads its death": (
        "open left, at 60000, lose, close left",
        [(None, 1_000, None), ("closed", 1_000, 4_000)],
    ),
    "a lapse of the lease ends a period, and its renewal begins another": (
        "open left, tick 3999, tick 4100, tick 5000, at 6000, renew, at 6500, close left",
        [
            (None, 1_000, None),
            ("lease_over", 1_000, 4_000),
            (None, 6_000, None),
            ("closed", 6_000, 6_500),
        ],
    ),
    "what opens without a lease is served from the renewal, if it is still there": (
        "tick 5000, open left, open right, close right, at 6000, renew, close left",
        [(None, 6_000, None), ("closed", 6_000, 6_000)],
    ),
    "a period ends no earlier than its last answer, or a failed check would not show": (
        "open left, answered left 9000, at 10000, close left",
        [(None, 1_000, None), ("closed", 1_000, 9_000)],
    ),
    "an answer after the end is reported at the next check, and at the end of the broker": (
        (
            "open left, at 2000, close left, answered left 3500, tick 3600, tick 9000,"
            " answered left 9100, stop"
        ),
        [
            (None, 1_000, None),
            ("closed", 1_000, 2_000),
            ("closed", 1_000, 3_500),
            ("closed", 1_000, 9_100),
        ],
    ),
    "work under a renewed lease belongs to the new period": (
        (
            "open left, tick 4100, at 5000, renew, answered left 6000, tick 6500, close left,"
            " tick 9000"
        ),
        [
            (None, 1_000, None),
            ("lease_over", 1_000, 4_000),
            (None, 5_000, None),
            ("closed", 5_000, 6_500),
        ],
    ),
    "the end of a broker ends its periods once, and so does an overrun deadline": (
        "open left, open right, abandon left, lose, stop, stop",
        [
            (None, 1_000, None),
            (None, 1_000, None),
            ("abandoned", 1_000, 1_000),
            ("stopped", 1_000, 1_000),
        ],
    ),
}
BUNDLES = {"left": LEFT, "right": RIGHT}


def perform(broker: Broker, step: str) -> None:
    match step.split():
        case ["new", bundle]:
            broker.new_handle(BUNDLES[bundle])
        case ["opened", bundle]:
            broker.recorder.stepped(Opened(bundle=BUNDLES[bundle]), broker)
        case ["open", bundle]:
            broker.open(BUNDLES[bundle])
        case ["open", bundle, "failing"]:
            broker.open(BUNDLES[bundle], problem="no")
        case ["answered", bundle, at_ms]:
            broker.handles[BUNDLES[bundle]].answered_ns = int(at_ms) * 1_000_000
        case ["close", bundle]:
            broker.close(broker.handles[BUNDLES[bundle]])
        case ["abandon", bundle]:
            broker.recorder.carried_out(Abandon(bundle=BUNDLES[bundle], doing="closing"))
        case ["at", boot_ms]:
            broker.clock.boot_ms = int(boot_ms)
        case ["tick", boot_ms]:
            broker.tick(int(boot_ms))
        case ["renew"]:
            broker.renew()
        case ["lose"]:
            broker.lease.lose()
            broker.lease = Lease(incarnation=0, skew_max_ms=500)
        case _:
            broker.recorder.stopped()


@pytest.mark.parametrize("name", STORIES)
def test_when_periods_begin_and_end(name: str) -> None:
    steps, reported = STORIES[name]
    broker = Broker()
    for step in steps.split(", "):
        perform(broker, step)
    assert reported == broker.reported


def test_serving_past_the_lease_is_marked() -> None:
    """Only the token guards it."""
    broker = Broker()
    within, beyond = broker.open(serves_on=True), broker.open(RIGHT, serves_on=True)
    broker.close(within)
    broker.tick(5_000)
    broker.close(beyond)
    assert [("closed", 1_000, 1_000), ("closed", 1_000, 5_000)] == broker.reported[2:]
    assert [False, True] == [each.by_token for each in broker.served[2:]]


def test_a_handle_has_the_time_of_its_last_answer() -> None:
    """It is marked if only the token guarded that. Work that fails is not noted."""
    broker = Broker()
    clock: Clock = broker.clock
    handle = broker.open(WHOLE)
    broker.clock.boot_ms = 2_000
    work = Ownership(handle, clock=clock).begin("key")
    work.finish()
    assert (2_000_000_000, False) == (handle.answered_ns, handle.answered_by_token)
    broker.clock.boot_ms = 4_500
    try:
        Ownership(handle, clock=clock).begin("key")
    except OwnershipLost:
        handle.serves_on = True
    with Ownership(handle, clock=clock).begin("key"):
        pass
    assert (4_500_000_000, True) == (handle.answered_ns, handle.answered_by_token)
    handle.serves_on = False
    broker.close(handle)
    assert (True, 4_500_000_000) == (broker.served[-1].by_token, broker.served[-1].answered_ns)


def test_a_split_ends_the_parent_and_begins_its_children() -> None:
    """At the same instant."""
    broker = Broker()
    parent = broker.open(WHOLE)
    broker.clock.boot_ms = 2_000
    children = (broker.new_handle(LEFT), broker.new_handle(RIGHT))
    for child in children:
        child.is_open = True
    parent.is_open = False
    broker.recorder.carried_out(Reshaped(gone=(parent,), children=children))
    assert [
        (None, 1_000, None),
        ("reshaped", 1_000, 2_000),
        (None, 2_000, None),
        (None, 2_000, None),
    ] == broker.reported
    assert [WHOLE, WHOLE, LEFT, RIGHT] == [each.bundle for each in broker.served]
