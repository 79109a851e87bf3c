"""The logs that transcripts of the command line begin with, by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.policies import (
    control_document,
    isolation_document,
    pin_document,
    quarantine_document,
    quarantine_key,
    tenant_document,
)
from equipoise.brokers.balancing.settings.settings_records import KEY
from equipoise.brokers.decision_log import DecisionLog
from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.lifecycle import STATE_OF_PHASE
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord, Document
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.shedder.plan import Budget, Stay
from tests.channels.carried import cut_off
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with, joined
from tests.channels.ruled import set_policy
from tests.decisions import idle, move, outcome, shed, with_plan
from tests.load.loaded import loaded, sample, uneven_channel
from tests.unit.cli.fabricated import RIGHT, Actors, author_of, owned_channel, write
from tests.unit.pulsar_cluster.written import BUNDLE, Written, a_life

TIMESTAMP_MS: Final = 1_767_225_600_123  # 2026-01-01 00:00:00.123 UTC
NO_RECORD: Final = b'{"kind": "\\u001b[2J"}'


def _with(
    *acts: Callable[[Channel], object], channel: Callable[[], Channel] = owned_channel
) -> Callable[[], Channel]:
    """Return a channel to which `acts` have happened."""

    def made() -> Channel:
        begun = channel()
        for act in acts:
            act(begun)
        return begun

    return made


def _told(
    make: Callable[[Author, BundleEntry], AnyRecord], *, by: str | None = None, point: int = 0
) -> Callable[[Channel], object]:
    """Return the act of a broker, or of an admin, on the bundle at a point."""
    return lambda channel: channel.accept(
        make(channel.admin() if by is None else channel.author(by), channel.bundle(point))
    )


def _transfer(to: str, *, point: int = 0, reason: str = "") -> Callable[[Channel], object]:
    return lambda channel: channel.accept(
        propose.transfer(
            channel.admin(),
            channel.bundle(point),
            destination=channel.incarnation(to),
            **({"reason": reason} if reason else {}),
        )
    )


def _dies(*brokers: str) -> Callable[[Channel], object]:
    def act(channel: Channel) -> None:
        for broker in brokers:
            channel.die(broker)

    return act


def _create(name: str, bundles: int = 1) -> Callable[[Channel], object]:
    return lambda channel: channel.create(even_boundaries(bundles), namespace=name)


def _policy(key: str, document: Document) -> Callable[[Channel], object]:
    return lambda channel: set_policy(channel, key, document)


_halves = partial(propose.start_split, algorithm="range_equally_divide")


def _busy() -> Channel:
    """Of four bundles of a, one is transferred, one is split, and one is unloaded."""
    channel = channel_with("a", "b", bundles=4)
    for bundle in channel.view.bundles_of(NAMESPACE):
        channel.own("a", bundle.low)
    low = [bundle.low for bundle in channel.view.bundles_of(NAMESPACE)]
    for act in (
        _transfer("b", point=low[0]),
        _told(_halves, point=low[1]),
        _told(propose.unload, point=low[2]),
    ):
        act(channel)
    return channel


def _mostly_owned(channel: Channel) -> None:
    """C owns all but the first of the eight bundles of a namespace."""
    channel.create(even_boundaries(8), namespace="shop/orders")
    for low in even_boundaries(8)[1:-1]:
        bundle = channel.bundle(low, namespace="shop/orders")
        channel.accept(propose.assign(channel.admin(), bundle, owner=channel.incarnation("c")))
        bundle = channel.bundle(low, namespace="shop/orders")
        channel.accept(propose.opened(channel.author("c"), bundle))


def eventful_channel() -> Channel:
    """A bundle goes from a to b; c dies, and a transfer to it is refused; a renews; and some bytes
    are no record.
    """
    channel = owned_channel()
    transfer = propose.transfer(
        channel.admin(),
        channel.bundle(),
        destination=channel.incarnation("b"),
        reason="to spread the load",
    )
    channel.accept(replace(transfer, timestamp_ms=TIMESTAMP_MS))
    channel.accept(propose.prepared(channel.author("b"), channel.bundle()))
    channel.accept(propose.hand_over(channel.author("a"), channel.bundle()))
    channel.die("c")
    channel.put(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("c"))
    )
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    channel.put_bytes(NO_RECORD)
    return channel


def moved_channel() -> Channel:
    """A bundle goes from a to b, c dies, d joins, a policy is set, and a renews: 16 records."""
    return _with(
        _transfer("b"),
        _told(propose.prepared, by="b"),
        _told(propose.hand_over, by="a"),
        _dies("c"),
        lambda channel: channel.accept(joined("d", channel.view, instance_id="instance_id of d")),
        _policy("groups", {"limit": 1}),
        lambda channel: channel.accept(propose.renewed(channel.author("a"), channel.broker("a"))),
    )()


def _written(made: Callable[[], Channel], folder: Path) -> str:
    return write(made().entries, folder)


def _truncated(folder: Path) -> str:
    """The log of the `moved_channel`. Its snapshot stands at offset 9, and its entries below 8 are
    gone.
    """
    url = write(moved_channel().entries, folder)
    with closing(open_log(url)) as log:
        cut_off(log, horizon=9, below=8)
    return url


def _closed(folder: Path) -> str:
    """The `moved_channel`, whose brokers have died, and whose log is closed."""
    channel = _with(_dies("a", "b", "d"), channel=moved_channel)()
    closing = encode(propose.close_log(channel.admin(), channel.view))
    return write([*channel.entries, (20, closing), (21, b"too late")], folder)


def _empty(folder: Path) -> str:
    """A log without records."""
    url = f"sqlite:{folder}/channel.db"
    open_log(url).close()
    return url


def _all_left(channel: Channel) -> None:
    """Some bytes are no record, and all brokers leave."""
    channel.put_bytes(NO_RECORD)
    for broker in ("a", "b", "c"):
        channel.accept(propose.left(channel.author(broker), channel.broker(broker)))


_CHANNELS: Final[Mapping[str, Callable[[], Channel]]] = {
    "owned": owned_channel,
    "c dead": _with(_dies("c")),
    "c draining": _with(
        lambda channel: channel.accept(propose.draining(channel.author("c"), channel.broker("c")))
    ),
    "b draining, c dead": _with(
        lambda channel: channel.accept(propose.draining(channel.author("b"), channel.broker("b"))),
        _dies("c"),
    ),
    "begun": _with(Channel.genesis, channel=Channel),
    "one bundle": _with(lambda channel: channel.own("a"), channel=partial(channel_with, "a", "b")),
    "a alone": _with(_dies("b", "c")),
    "left unloading": _with(_told(propose.unload), _create("shop/orders", 4)),
    "left moving, right free": _with(
        _transfer("c"),
        _told(propose.unload, point=MIDDLE),
        _told(propose.released, by="b", point=MIDDLE),
        _create("shop/orders"),
    ),
    "left splitting": _with(_told(_halves)),
    "left splitting at 16": _with(
        _told(partial(propose.start_split, algorithm="specified_positions_divide", positions=(16,)))
    ),
    "left ready at c": _with(_transfer("c"), _told(propose.prepared, by="c")),
    "right in quarantine": _with(
        _told(propose.unload, point=MIDDLE),
        _told(propose.released, by="b", point=MIDDLE),
        _policy(
            quarantine_key(RIGHT),
            quarantine_document(
                "2 owners in a row died",
                hold_ms=60_000,
                until_ms=1_800_000_000_000,
                evidence=(3, 7),
            ),
        ),
    ),
    "both of a": _with(
        _transfer("a", point=MIDDLE),
        _told(propose.prepared, by="a", point=MIDDLE),
        _told(propose.hand_over, by="b", point=MIDDLE),
    ),
    "four busy": _busy,
    "uneven": lambda: uneven_channel("a" * 8 + "b" * 8 + "c" * 8),
    "seven of eight": _with(_mostly_owned),
    "ruled": _with(
        _policy(
            "isolation/x",
            isolation_document(
                namespaces=["tenant/.*"],
                primary=["a", "b"],
                secondary=["c"],
                min_limit=1,
                usage_threshold=80,
            ),
        ),
        _policy(
            "pin/y",
            pin_document(namespace=NAMESPACE, brokers=["b"], range_="0x80000000_0xffffffff"),
        ),
    ),
    "another kind of policy": _with(_policy("settings/x", {"a": 1})),
    "broken policy": _with(_policy("isolation/x", {"namespaces.0": "(", "primary.0": 7})),
    "two namespaces": _with(_create("tenant/other")),
    "tenant boss": _with(
        _policy(
            "tenant/tenant",
            tenant_document(admin_roles=["tenant-boss"], allowed_clusters=["test"]),
        )
    ),
    "unreadable settings": _with(
        _policy(KEY, {"balanced.moves_max": 0, "later.thing": 1, "balanced.start_ratio": "0.5"})
    ),
    "eventful": eventful_channel,
    "moved": moved_channel,
    "all left": _with(_all_left),
    "many policies": _with(*(_policy(f"policy-{number}", {}) for number in range(30))),
    **{f"a bundle {phase}": partial(channel_in, phase) for phase in STATE_OF_PHASE},
}

UNEVEN: Final = {"a": 90.0, "b": 35.0, "c": 5.0}


def _loaded(
    *acts: Callable[[Channel], object],
    percents: Mapping[str, float] = UNEVEN,
    owners: str = "aaaaaabb",
    also: Mapping[str, tuple[float, int]] = {},
    decided: Sequence[Callable[[int], Decision]] = (),
) -> Callable[[Path], str]:
    """Return a log with load reports, further ones by broker (percent, age), and decisions, each
    made from the present Unix time.
    """

    def made(folder: Path) -> str:
        channel = _with(
            *acts,
            channel=partial(uneven_channel, owners, brokers="abcde" if "e" in also else "abc"),
        )()
        log = loaded(channel, folder, percents)
        for broker, (percent, age_ms) in also.items():
            LoadBus(log).publish(sample(channel, broker, percent, age_ms=age_ms))
        for decision in decided:
            DecisionLog(log).write(decision(time.time_ns() // 1_000_000))
        return log

    return made


def _archived(folder: Path, written: Written) -> str:
    """An archive of what the brokers of a Pulsar cluster wrote."""
    with open_archive(folder / "pulsar.db", create_for="pulsar://127.0.0.1:6650") as archive:
        archive.append(written.reads)
    return f"{folder}/pulsar.db"


_PULSAR: Final[Mapping[str, Callable[[Path], str]]] = {
    "archive of a life": lambda folder: _archived(folder, a_life()),
    "archive of two owners": lambda folder: _archived(
        folder,
        Written().assign(BUNDLE, "a:80").add(BUNDLE, "b:80", "Owned", to="b:80", version=9),
    ),
}
_FAR_MS: Final = 2_000_000_000_000
_USED: Final = Budget(most=1.0, used=1.0)
_PLANS: Final[Mapping[str, Callable[[Path], str]]] = {
    "uneven load": _loaded(),
    "even load": _loaded(owners="abcabc", percents={"a": 40.0, "b": 41.0, "c": 40.0}),
    "no load": _loaded(percents={}),
    "old load": _loaded(percents={}, also={"a": (90.0, 100_000)}),
    "load of some": _loaded(also={"d": (50.0, 60_000), "e": (float("nan"), 0)}),
    "load and isolation": _loaded(
        _policy(
            "isolation/first",
            {"namespaces.0": "tenant/ns", "primary.0": "a", "primary.1": "b"},
        )
    ),
    "load and controls": _loaded(
        _policy("freeze/tenant/ns", control_document("a sale")),
        _policy("maintenance/c", control_document("new disks")),
        _policy(
            quarantine_key(f"{NAMESPACE}/0x00000000_0x20000000"),
            quarantine_document(
                "2 owners in a row died", hold_ms=60_000, until_ms=_FAR_MS, evidence=()
            ),
        ),
        _policy("pause/balancing", control_document("upgrade", until_ms=_FAR_MS)),
    ),
    "moved before": _loaded(
        decided=[
            lambda now_ms: replace(
                with_plan(shed(now_ms - 7_260_000), stays=(Stay(subject="c", reason="it drains"),)),
                stays_left_out=2,
                moves_left_out=1,
            )
        ]
    ),
    "idle before": _loaded(decided=[lambda now_ms: idle(now_ms - 125_000)]),
    "measured before": _loaded(decided=[lambda now_ms: outcome(now_ms - 125_000)]),
    "not done before": _loaded(
        decided=[
            lambda now_ms: replace(
                with_plan(outcome(now_ms - 65_000), moves=()), brokers=(), durations_ms={}
            )
        ]
    ),
    "placed before": _loaded(
        decided=[
            lambda now_ms: with_plan(
                shed(now_ms - 125_000), moves=(replace(move(0), destination=None),)
            )
        ]
    ),
    "budget used": _loaded(
        owners="aaaabb",
        percents={"a": 90.0, "b": 35.0},
        decided=[lambda now_ms: with_plan(idle(now_ms), budget=_USED)],
    ),
    "budget of another used": _loaded(
        owners="aaaabb",
        percents={"a": 90.0, "b": 35.0},
        decided=[lambda now_ms: with_plan(idle(now_ms, broker="b"), budget=_USED)],
    ),
}

WORLDS: Final[Mapping[str, Callable[[Path], str]]] = {
    **{name: partial(_written, made) for name, made in _CHANNELS.items()},
    "sound": lambda folder: write(eventful_channel().entries[:-1], folder),
    **_PLANS,
    **_PULSAR,
    "truncated": _truncated,
    "closed": _closed,
    "empty": _empty,
    "absent": lambda folder: f"sqlite:{folder}/channel.db",
}
"""Makes the log of each world in a folder, and returns its URL."""


def _giving_up(view: View) -> AnyRecord | None:
    """Another broker gives the first bundle up once it owns it, and then a assigns it to itself."""
    bundle, a = next(iter(view.bundles.values())), view.brokers["a"]
    if bundle.phase == "owned" and bundle.owner is not None and bundle.owner != a.incarnation:
        return propose.give_up(author_of(view.live[bundle.owner]), bundle, problem="no disk")
    return (
        propose.assign(author_of(a), bundle, owner=a.incarnation)
        if bundle.phase == "free"
        else None
    )


ACTORS: Final[Mapping[str, Callable[[str], Actors]]] = {
    "brokers act": Actors,
    "brokers give up": partial(Actors, also=_giving_up),
    "c cancels": partial(
        Actors, script={"transferring": partial(propose.cancel, reason="the disk is full")}
    ),
}
"""Makes what plays the brokers of the log at a URL."""
