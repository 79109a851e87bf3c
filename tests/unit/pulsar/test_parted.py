"""What is kept for next owners: bounded in bytes and in time."""

from __future__ import annotations

from brokers.pulsar.parted import Parted
from tests.unit.http.cluster import run, until


def test_a_state_is_kept_until_it_is_asked_for_and_not_for_ever() -> None:
    """It may be asked for more than once; its time ends all the same, and so does that of one that was forgotten before."""

    async def story() -> None:
        parted = Parted(bytes_max=100, kept_ms=30)
        parted.keep("a", b"state")
        parted.forget("never there")
        assert [b"state", b"state", None] == [parted.get(bundle) for bundle in ("a", "a", "b")]
        await until(lambda: parted.get("a") is None)

    run(story)


def test_of_too_many_bytes_the_oldest_go() -> None:
    """A bundle that is parted with again counts as new, and its earlier state as nothing."""

    async def story() -> None:
        parted = Parted(bytes_max=10, kept_ms=60_000)
        for bundle, state in (("a", b"aaaa"), ("b", b"bbbb"), ("a", b"AAAA"), ("c", b"cc"), ("d", b"dddd")):
            parted.keep(bundle, state)
        assert [b"AAAA", None, b"cc", b"dddd"] == [parted.get(bundle) for bundle in "abcd"]
        parted.keep("e", b"x" * 11)
        assert [None] * 5 == [parted.get(bundle) for bundle in "abcde"]

    run(story)
