"""Makes the golden logs of the newest level: `python -m tests.golden.make`. It never writes over
one that is there.

A log is a gzip file of JSON lines. Each line is one entry: its logical `offset`, its bytes (as
`text`, or as `base64` where they are no UTF-8), and the `verdict`: `accepted` or the reason. Every
`DIGEST_INTERVAL` lines, and at the end, the line also has the view's `digest` just after it.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import ADMIN_WINDOW_OFFSETS
from equipoise.channel.core.view import View, apply
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, joined, raise_level
from tests.channels.walk import Walk

FOLDER: Final = Path(__file__).resolve().parent / "level_1"
SEEDS: Final = range(8)
WALK_RECORDS: Final = 500
DIGEST_INTERVAL: Final = 25

Entries = list[tuple[int, bytes]]


def corners() -> Entries:
    """What random walks seldom or never meet: the time before the genesis, a base, large numbers,
    each end of a window.
    """
    channel, base = Channel(), 2**40
    channel.put(joined("a:1", channel.view, instance_id="too early"))
    channel.put(
        propose.genesis(Author(publisher="admin:ops"), cluster="golden", base=base), offset=base + 2
    )
    channel.put(propose.genesis(Author(publisher="admin:ops"), cluster="golden"))
    channel.put(propose.genesis(Author(publisher="admin:ops"), cluster="other"))
    channel.join("a:1", "b:1")
    channel.put(joined("a b", channel.view, instance_id="n"))
    channel.put(raise_level(channel.admin(), channel.view, level=2))
    channel.put(replace(raise_level(channel.author("a:1"), channel.view, level=2), level=2))
    channel.create((0, MIDDLE, HASH_MAX))
    namespaces(channel)
    windows(channel)
    moves(channel)
    channel.put(
        propose.renewed(channel.author("a:1"), replace(channel.broker("a:1"), digest_after=1))
    )
    channel.put(joined("b:1", channel.view, instance_id="second", replaces="instance_id of b:1"))
    channel.put(joined("a:1", channel.view, instance_id="third", after_silence=True))
    channel.put(joined("a:1", channel.view, instance_id="fourth"))
    channel.put(propose.renewed(channel.author("a:1"), channel.broker("a:1")), offset=2**62)
    return channel.entries


def namespaces(channel: Channel) -> None:
    """Names that are none, a namespace that is not there, and one that goes."""
    for name in ("t", "t/\u00e4", "t/n"):
        channel.put(
            propose.create_namespace(
                channel.admin(), channel.view, name=name, boundaries=(0, HASH_MAX)
            )
        )
    missing = replace(
        propose.start_deleting_namespace(channel.admin(), channel.view, name="t/n"), key="t/none"
    )
    channel.put(replace(missing, expected_offset=channel.view.removed_at))
    channel.put(propose.start_deleting_namespace(channel.admin(), channel.view, name="t/n"))
    channel.put(
        propose.assign(
            channel.admin(), channel.bundle(namespace="t/n"), owner=channel.incarnation("a:1")
        )
    )
    channel.put(propose.delete_namespace(channel.admin(), channel.view, name="t/n"))


def windows(channel: Channel) -> None:
    """An admin at both ends of its window, and sequences at theirs."""
    for behind in (0, 1, ADMIN_WINDOW_OFFSETS, ADMIN_WINDOW_OFFSETS + 1):
        offset = channel.view.offset + 2 * ADMIN_WINDOW_OFFSETS
        author = Author(publisher="admin:ops", as_of=offset - behind)
        channel.put(
            propose.set_policy(author, channel.view, name="p", document={"behind": behind}),
            offset=offset,
        )
    channel.join("c:1")
    for sequence in (0, 2**63 - 1, 2**63 - 1, 1):
        author = Author(publisher="c:1", incarnation=channel.incarnation("c:1"), sequence=sequence)
        channel.put(propose.remove_policy(author, channel.view, name="p"))


def moves(channel: Channel) -> None:
    """A transfer with a handover, a split, a merge, and a bundle that is unloaded while its source
    dies.
    """
    channel.own("a:1")
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(), destination=channel.incarnation("b:1"))
    )
    channel.accept(propose.prepared(channel.author("b:1"), channel.bundle()))
    channel.accept(
        propose.hand_over(channel.author("a:1"), channel.bundle(), handover=bytes(range(256)))
    )
    channel.accept(
        propose.start_split(
            channel.author("a:1"), channel.bundle(), algorithm="range_equally_divide"
        )
    )
    channel.accept(propose.split(channel.author("b:1"), channel.bundle(), cuts=(1, 2, MIDDLE - 1)))
    first, second, *_ = channel.view.bundles_of(NAMESPACE)
    channel.accept(propose.merge(channel.author("a:1"), first, second))
    channel.put(propose.merge(channel.author("a:1"), first, second))
    channel.accept(propose.unload(channel.admin(), channel.bundle(), reason="\u00fc\U0001f600"))


def named() -> Entries:
    """Programs that serve different namespaces: each gets only its own bundles, also after it has
    joined again with another set, and from a program that dies.
    """
    channel = Channel()
    channel.genesis()
    for namespace in ("t/one", "t/two", "u/one"):
        channel.create((0, MIDDLE, HASH_MAX), namespace=namespace)
    channel.join("all:1")
    channel.join("one:1", serves=("t/one",))
    channel.join("ts:1", serves=("t/*", "none/*none"))
    channel.join("ones:1", serves=("*/one", "*t*w*o", "t/one*x"))
    channel.join("none:1", serves=())
    brokers = ("all:1", "one:1", "ts:1", "ones:1", "none:1")

    def offer() -> None:
        for namespace in ("t/one", "t/two", "u/one"):
            for point in (0, MIDDLE):
                for broker in brokers:
                    bundle, owner = channel.bundle(point, namespace=namespace), broker
                    target = channel.incarnation(owner)
                    if bundle.phase == "owned":
                        channel.put(propose.transfer(channel.admin(), bundle, destination=target))
                        bundle = channel.bundle(point, namespace=namespace)
                        if bundle.phase == "transferring":
                            channel.put(propose.prepared(channel.author(owner), bundle))
                    else:
                        channel.put(propose.assign(channel.admin(), bundle, owner=target))
                        bundle = channel.bundle(point, namespace=namespace)
                        channel.put(propose.opened(channel.author(owner), bundle))

    offer()
    channel.die("all:1")
    channel.put(
        joined(
            "one:1",
            channel.view,
            instance_id="again",
            replaces="instance_id of one:1",
            serves=("u/*",),
        )
    )
    offer()
    channel.put(propose.merge(channel.author("one:1"), *channel.view.bundles_of("u/one")))
    channel.put(propose.renewed(channel.author("ts:1"), channel.broker("ts:1")))
    return channel.entries


def walk(seed: int) -> Entries:
    """The first entries of a random walk."""
    steps = Walk(seed)
    return [steps.step() for _ in range(WALK_RECORDS)]


def lines(entries: Entries) -> Iterator[bytes]:
    """The lines of a golden log, with the verdicts that today's fold reaches."""
    view = View()
    for place, (offset, data) in enumerate(entries, start=1):
        reason = apply(view, offset, decode(data)).reason
        line: dict[str, object] = {"offset": offset}
        try:
            line["text"] = data.decode()
        except UnicodeDecodeError:
            line["base64"] = b64encode(data).decode()
        line["verdict"] = "accepted" if reason is None else reason.value
        if place % DIGEST_INTERVAL == 0 or place == len(entries):
            line["digest"] = view.digest()
        yield orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def make() -> None:
    """Write the logs that are not there yet."""
    logs = {"corners": corners(), "named": named()} | {f"walk_{seed}": walk(seed) for seed in SEEDS}
    for name, entries in logs.items():
        path = FOLDER / f"{name}.jsonl.gz"
        if not path.exists():
            # Without a time in it, so that the same log gives the same file.
            path.write_bytes(gzip.compress(b"".join(lines(entries)), mtime=0))


if __name__ == "__main__":
    make()
