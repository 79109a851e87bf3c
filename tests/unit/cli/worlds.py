"""The logs that transcripts of the command line begin with, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from equipoise.brokers.balancing.policies import (
    isolation_document,
    pin_document,
    quarantine_document,
    quarantine_key,
    tenant_document,
)
from equipoise.brokers.balancing.settings.settings_records import KEY
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.lifecycle import STATE_OF_PHASE
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord, Document
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from tests.channels.carried import cut_off
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with, joined
from tests.channels.ruled import set_policy
from tests.load.loaded import uneven_channel
from tests.unit.cli.fabricated import RIGHT, Actors, author_of, owned_channel, write

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
    "many policies": _with(*(_policy(f"policy-{number}", {}) for number in range(30))),
    **{f"a bundle {phase}": partial(channel_in, phase) for phase in STATE_OF_PHASE},
}

WORLDS: Final[Mapping[str, Callable[[Path], str]]] = {
    **{name: partial(_written, made) for name, made in _CHANNELS.items()},
    "sound": lambda folder: write(eventful_channel().entries[:-1], folder),
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
