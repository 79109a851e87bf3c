"""Test the description of records and the story of a bundle.

The expected text is in tests/unit/inspect/stories. `python -m tests.unit.inspect.test_story`
rewrites it; review the diff like code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BundleEntry, Verdict
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX, BundleName, parse_bundle
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.records import ADMIN_WINDOW_OFFSETS, AnyRecord, Document, Reason
from equipoise.channel.core.view import View, apply
from equipoise.channel.inspect.story import (
    Names,
    as_document,
    concerns,
    describe,
    ending_of,
    explain,
    story_of,
)
from tests.channels.folding import (
    MIDDLE,
    NAMESPACE,
    Channel,
    channel_in,
    channel_with,
    joined,
    raise_level,
)
from tests.channels.walk import Walk

STORIES = Path(__file__).resolve().parent / "stories"
QUARTER = MIDDLE // 2
WALK_RECORDS = 250


def put(channel: Channel, *makes: Callable[[], AnyRecord]) -> None:
    """Append records, each made once those before it are folded."""
    for make in makes:
        channel.put(make())


def moves() -> Channel:
    """Transfers, with races lost on the way; a split and a merge; two deaths."""
    channel = channel_with("a:1", "b:1", "c:1", bundles=2)
    channel.own("a:1")
    channel.own("b:1", MIDDLE)
    channel.put(propose.renewed(channel.author("a:1"), channel.broker("a:1")))
    before = channel.bundle()
    put(
        channel,
        lambda: propose.transfer(
            channel.admin(), before, destination=channel.incarnation("b:1"), reason="overloaded"
        ),
        lambda: propose.transfer(
            channel.admin(), before, destination=channel.incarnation("c:1"), reason="too late"
        ),
        lambda: propose.cancel(channel.author("c:1"), channel.bundle(), reason="not now"),
        lambda: propose.transfer(
            channel.admin(), channel.bundle(), destination=channel.incarnation("b:1")
        ),
        lambda: propose.prepared(channel.author("b:1"), channel.bundle()),
        lambda: propose.hand_over(channel.author("a:1"), channel.bundle(), handover=b"state"),
        lambda: propose.draining(channel.author("c:1"), channel.broker("c:1"), reason="restart"),
        lambda: propose.transfer(
            channel.admin(), channel.bundle(), destination=channel.incarnation("c:1")
        ),
    )
    gone = channel.incarnation("c:1")
    put(
        channel,
        lambda: propose.left(channel.author("c:1"), channel.broker("c:1")),
        lambda: propose.transfer(channel.admin(), channel.bundle(), destination=gone),
        lambda: propose.start_split(
            channel.admin(),
            channel.bundle(),
            algorithm="specified_positions_divide",
            positions=[QUARTER],
        ),
        lambda: propose.split(channel.author("b:1"), channel.bundle(), cuts=[QUARTER]),
        lambda: propose.unload(channel.admin(), channel.bundle(), reason="maintenance"),
        lambda: propose.released(channel.author("b:1"), channel.bundle()),
        lambda: propose.merge(
            channel.admin(), channel.bundle(QUARTER), channel.bundle(MIDDLE), reason="cold"
        ),
        lambda: joined("b:1", channel.view, instance_id="second", replaces="instance_id of b:1"),
        lambda: propose.assign(
            channel.admin(), channel.bundle(QUARTER), owner=channel.incarnation("b:1")
        ),
        lambda: propose.assign(
            channel.admin(), channel.bundle(QUARTER), owner=channel.incarnation("a:1")
        ),
        lambda: propose.refuse(channel.author("a:1"), channel.bundle(QUARTER), reason="no room"),
    )
    channel.die("a:1")
    return channel


def names() -> Channel:
    """Namespaces, policies and levels come and go, and a late log tells where it goes on."""
    channel = Channel()
    channel.put(
        propose.genesis(Author(publisher="admin:ops"), cluster="test", base=1_000), offset=1_001
    )
    channel.put(joined("a:1", channel.view, instance_id="first"))
    channel.create()
    put(
        channel,
        lambda: propose.set_namespace_policies(
            channel.admin(), channel.view, name=NAMESPACE, policies={"limit": 1}
        ),
        lambda: propose.set_policy(channel.admin(), channel.view, name="isolation", document={}),
        lambda: propose.remove_policy(channel.admin(), channel.view, name="isolation"),
        lambda: propose.start_deleting_namespace(channel.admin(), channel.view, name=NAMESPACE),
        lambda: propose.delete_namespace(channel.admin(), channel.view, name=NAMESPACE),
        lambda: joined("a:1", channel.view, instance_id="second", after_silence=True),
        lambda: joined("b:1", channel.view, instance_id="third"),
    )
    channel.die("a:1")
    put(
        channel,
        lambda: propose.remove_broker(channel.author("b:1"), channel.broker("a:1")),
        lambda: replace(propose.renewed(channel.author("b:1"), channel.broker("b:1")), digest=1),
        lambda: raise_level(channel.admin(), channel.view, level=2),
    )
    return channel


def policies() -> Channel:
    """A policy is set, changed in part, changed in very much, set to what it is, and removed."""
    channel = channel_with("a:1")
    many: Document = {f"entry{number:0>2}": number for number in range(20)}
    documents: tuple[Document, ...] = (
        {"limit": 1, "name": "x"},
        {"limit": 2, "on": True},
        many,
        many,
    )
    for document in documents:
        channel.put(
            propose.set_policy(channel.admin(), channel.view, name="isolation", document=document)
        )
    channel.put(
        propose.set_policy(channel.admin(), channel.view, name="isolation", document={"limit": 2})
    )
    channel.put(propose.remove_policy(channel.admin(), channel.view, name="isolation"))
    return channel


def rejections() -> Channel:
    """Every reason, and the different words for one where there are several."""
    channel = Channel()
    channel.put(joined("a:1", channel.view, instance_id="too early"))
    channel.genesis()
    channel.put(propose.genesis(Author(publisher="admin:eve"), cluster="test"))
    channel.put(propose.genesis(Author(publisher="admin:eve"), cluster="other"))
    channel.put_bytes(b"garbage")
    channel.join("a:1", "b:1", "c:1")
    channel.join("e:1", serves=["other/*"])
    signed = channel.author("a:1")
    channel.put_bytes(
        orjson.dumps(
            {
                "kind": "?",
                "publisher": "a:1",
                "incarnation": signed.incarnation,
                "sequence": signed.sequence,
            }
        )
    )
    channel.put(replace(raise_level(channel.admin(), channel.view, level=2), as_of=10**6))
    channel.create((0, QUARTER, MIDDLE, HASH_MAX))
    channel.own("a:1")
    channel.own("b:1", MIDDLE)
    _reject_bundles(channel)
    _reject_others(channel)
    offset = channel.view.offset + ADMIN_WINDOW_OFFSETS + 1
    channel.put(
        propose.set_policy(channel.admin(), channel.view, name="limit", document={}), offset=offset
    )
    return channel


def _reject_bundles(channel: Channel) -> None:
    view, admin = channel.view, channel.admin
    free, owned, right = channel.bundle(QUARTER), channel.bundle(), channel.bundle(MIDDLE)
    put(
        channel,
        lambda: replace(
            propose.assign(admin(), free, owner=channel.incarnation("a:1")),
            key=f"{NAMESPACE}/0x00000000_0x00000001",
        ),
        lambda: propose.unload(admin(), free),
        lambda: propose.assign(admin(), free, owner=1),
        lambda: propose.opened(
            channel.author("a:1"), replace(free, owner=channel.incarnation("a:1"))
        ),
        lambda: propose.released(channel.author("a:1"), owned),
        lambda: propose.split(channel.author("a:1"), owned, cuts=[1]),
        lambda: propose.merge(admin(), owned, right),
        lambda: propose.merge(admin(), owned, free),
        lambda: replace(propose.merge(admin(), owned, free), expected_offset_right=1),
        lambda: propose.start_split(admin(), owned, algorithm="x"),
        lambda: propose.split(channel.author("a:1"), channel.bundle(), cuts=[0]),
        lambda: propose.split(channel.author("b:1"), channel.bundle(), cuts=[1]),
        lambda: propose.draining(channel.author("c:1"), channel.broker("c:1")),
        lambda: propose.draining(channel.author("c:1"), channel.broker("c:1")),
        lambda: propose.assign(admin(), free, owner=channel.incarnation("c:1")),
        lambda: propose.assign(admin(), free, owner=channel.incarnation("e:1")),
        lambda: propose.start_deleting_namespace(admin(), view, name=NAMESPACE),
        lambda: propose.assign(admin(), free, owner=channel.incarnation("a:1")),
        lambda: propose.delete_namespace(admin(), view, name=NAMESPACE),
    )


def _reject_others(channel: Channel) -> None:
    view, admin = channel.view, channel.admin
    late = channel.author("b:1")
    put(
        channel,
        lambda: propose.renewed(channel.author("b:1"), channel.broker("b:1")),
        lambda: propose.renewed(late, channel.broker("b:1")),
        lambda: replace(
            propose.renewed(channel.author("b:1"), channel.broker("b:1")), expected_offset=1
        ),
        lambda: replace(
            propose.renewed(channel.author("b:1"), channel.broker("b:1")), publisher="stranger"
        ),
        lambda: propose.down(admin(), channel.broker("a:1"), instance_id="a guess"),
        lambda: propose.down(channel.author("a:1"), channel.broker("a:1")),
        lambda: joined("a:1", view, instance_id="another"),
        lambda: replace(joined("d:1", view, instance_id="another"), level=7),
        lambda: replace(
            propose.remove_broker(channel.author("a:1"), channel.broker("b:1")),
            key="d:1",
            expected_offset=view.removed_at,
        ),
        lambda: propose.create_namespace(admin(), view, name=NAMESPACE, boundaries=(0, HASH_MAX)),
        lambda: propose.create_namespace(admin(), view, name="tenant/other", boundaries=(0, 1)),
        lambda: replace(
            propose.create_namespace(admin(), view, name="tenant/other", boundaries=(0, HASH_MAX)),
            expected_offset=0,
        ),
        lambda: replace(
            propose.delete_namespace(admin(), view, name=NAMESPACE),
            key="tenant/other",
            expected_offset=view.removed_at,
        ),
        lambda: propose.remove_policy(admin(), view, name="limit"),
        lambda: replace(propose.remove_policy(admin(), view, name="limit"), expected_offset=0),
        lambda: raise_level(admin(), view, level=1),
        lambda: raise_level(admin(), view, level=2),
        lambda: replace(raise_level(admin(), view, level=2), expected_offset=0),
        lambda: replace(propose.set_policy(admin(), view, name="limit", document={}), level=2),
    )


def fold(channel: Channel) -> Iterator[tuple[Folded, View, Names]]:
    """The records of a channel one by one, each with the view and the names just after it."""
    view = View()
    known = Names(view)
    for offset, data in channel.entries:
        record = decode(data)
        folded = Folded(offset=offset, record=record, verdict=apply(view, offset, record))
        known.learn(folded)
        yield folded, view, known


def all_of(channel: Channel) -> list[str]:
    """Return the text of each record."""
    return [_text(folded, describe(folded, view, known)) for folded, view, known in fold(channel)]


def _text(folded: Folded, lines: list[str]) -> str:
    return f"{folded.offset}  " + "\n    ".join(lines)


def story_in(channel: Channel, bundle: str) -> list[str]:
    """The story of a bundle, as it is printed, with its ending."""
    reader = Reader(log="memory:test")
    known, about = Names(reader.view), parse_bundle(bundle)
    entries = [Entry(offset, data) for offset, data in channel.entries]
    records = [_text(folded, lines) for folded, lines in story_of(about, reader, known, entries)]
    return [*records, *ending_of(about, reader.view, known)]


FILES: dict[str, Callable[[], list[str]]] = {
    "moves": lambda: all_of(moves()),
    "names": lambda: all_of(names()),
    "policies": lambda: all_of(policies()),
    "rejections": lambda: all_of(rejections()),
    "story_of_a_merged_bundle": lambda: story_in(moves(), f"{NAMESPACE}/0x40000000_0xffffffff"),
    "story_of_a_split_bundle": lambda: story_in(moves(), f"{NAMESPACE}/0x00000000_0x80000000"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_told(name: str) -> None:
    """The full description of a small channel is the one on file."""
    assert (STORIES / f"{name}.txt").read_text(encoding="utf-8") == "".join(
        f"{line}\n" for line in FILES[name]()
    )


def test_every_reason_has_a_rejection() -> None:
    """The file of rejections has every reason, so a person has read the message of each."""
    text = (STORIES / "rejections.txt").read_text(encoding="utf-8")
    assert [] == [
        reason
        for reason in Reason
        if f"rejected as {reason}\n" not in text or f"    {reason}: " not in text
    ]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_on_a_channel_can_be_told(seed: int) -> None:
    """Every record, valid or not, has printable text, and a rejection has its reason in it."""
    walk = Walk(seed, levels=False)
    reader = Reader(log="memory:test")
    known = Names(reader.view)
    for _ in range(WALK_RECORDS):
        offset, data = walk.step()
        folded = reader.feed(Entry(offset, data))
        known.learn(folded)
        text = describe(folded, reader.view, known)
        assert all(line.isprintable() for line in text)
        assert folded.verdict.accepted == ("rejected as" not in text[0])
        assert (
            folded.verdict.accepted
            or text[-1] == f"{folded.verdict.reason}: {explain(folded, reader.view, known)}"
        )
        orjson.dumps(as_document(folded, text))


@pytest.mark.parametrize("seed", range(2))
def test_a_bundle_and_its_history_are_one_story(seed: int) -> None:
    """Every accepted change of a range that shares points with the bundle is in its story, and
    nothing else that was accepted.
    """
    walk = Walk(seed)
    reader = Reader(log="memory:test")
    about = BundleName("t/one", 0x30000000, 0x50000000)
    for _ in range(WALK_RECORDS):
        offset, data = walk.step()
        before = {bundle.name: bundle.last for bundle in _sharing(reader.view, about)}
        folded = reader.feed(Entry(offset, data))
        after = {bundle.name: bundle.last for bundle in _sharing(reader.view, about)}
        if folded.verdict.accepted and getattr(folded.record, "key", "") != "t/one":
            assert (before != after) == concerns(folded, about)


def _sharing(view: View, about: BundleName) -> list[BundleEntry]:
    return [
        bundle
        for bundle in view.bundles_of(about.namespace)
        if bundle.low < about.high and about.low < bundle.high
    ]


def test_a_bundle_that_cannot_be_is_in_no_story() -> None:
    """A record whose key is no name of a bundle concerns none, and is told all the same."""
    channel = channel_in("owned")
    channel.put(replace(propose.unload(channel.admin(), channel.bundle()), key="a\x00b"))
    *_, (folded, view, known) = fold(channel)
    assert Reason.UNKNOWN_BUNDLE is folded.verdict.reason
    assert not concerns(folded, parse_bundle(channel.bundle().name))
    assert (
        "unload     a\\x00b  from owner  by admin:ops  rejected as unknown_bundle"
        == describe(folded, view, known)[0]
    )


def test_a_line_stays_a_line() -> None:
    """Text that would break a line, or talk to the terminal, is escaped: a record holds what
    anybody wrote.
    """
    channel = channel_in("owned")
    channel.put(propose.unload(channel.admin(), channel.bundle(), reason="a\nb\x1b[31m\u202e"))
    *_, (folded, view, known) = fold(channel)
    assert "reason: a\\nb\\x1b[31m\\u202e" == describe(folded, view, known)[1]


def test_the_end_of_a_log_tells_where_its_channel_goes_on() -> None:
    """Whoever looks at the old log reads which one is the new one, if whoever closed it said so."""
    author = Author(publisher="admin:ops", as_of=3)
    for copied_to, where in ((None, ""), ("sqlite:new.db", ": sqlite:new.db")):
        record = propose.close_log(author, View(), copied_to=copied_to, identity="i")
        text = describe(Folded(offset=4, record=record, verdict=Verdict()), View(), Names(View()))
        assert ["close      log  by admin:ops", f"the channel continues in a copy{where}"] == text


def test_names_come_from_a_view_and_from_who_joins() -> None:
    """A name is known from the view that one starts with or from a record that joined, and spelled
    with its incarnation.
    """
    channel = channel_with("a:1")
    known = Names(channel.view)
    assert ["a:1", "#9", "nobody"] == [known.of(2), known.of(9), known.of(None)]
    verdict = channel.put(joined("b:1", channel.view, instance_id="n"))
    known.learn(
        Folded(offset=9, record=joined("b:1", channel.view, instance_id="n"), verdict=verdict)
    )
    known.learn(
        Folded(
            offset=10,
            record=joined("c:1", channel.view, instance_id="n"),
            verdict=Verdict(reason=Reason.STALE),
        )
    )
    assert ["b:1", "#10"] == [known.of(9), known.of(10)]
    known.learn(
        Folded(offset=11, record=joined("b:1", channel.view, instance_id="m"), verdict=Verdict())
    )
    assert ["b:1#9", "b:1"] == [known.of(9), known.of(11)]


def test_short_names_leave_out_loopback() -> None:
    """A person reads `:8081`; other hosts, and the names of errors, stay whole."""
    channel = channel_with("127.0.0.1:8081", "far:8082")
    assert [":8081", "far:8082"] == [
        Names(channel.view, short=True).of(offset) for offset in (2, 3)
    ]
    assert "127.0.0.1:8081" == Names(channel.view).of(2)


def test_the_ending_without_a_namespace_says_so() -> None:
    """A story whose namespace is gone ends with that."""
    assert ["there is no namespace t/n"] == ending_of(
        BundleName("t/n", 0, 1), View(), Names(View())
    )


def test_a_document_for_programs() -> None:
    """A folded record as a JSON object has the record as it is on the log, the verdict, and what
    people are told.
    """
    channel = channel_in("owned")
    record = propose.transfer(channel.admin(), channel.bundle(), destination=99)
    verdict = channel.put(record)
    folded = Folded(offset=channel.view.offset, record=record, verdict=verdict)
    expected = {
        "offset": channel.view.offset,
        "record": orjson.loads(encode(record)),
        "accepted": False,
        "reason": "dead_target",
        "problem": None,
        "text": ["a line"],
    }
    assert expected == orjson.loads(orjson.dumps(as_document(folded, ["a line"])))


if __name__ == "__main__":
    for name, tell in FILES.items():
        (STORIES / f"{name}.txt").write_text(
            "".join(f"{line}\n" for line in tell()), encoding="utf-8"
        )
