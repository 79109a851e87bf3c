"""What is kept of bundles that were closed: bounded in bytes and in time, and never taken for what it is not."""

from __future__ import annotations

from brokers.pulsar.parted import Left, Parted
from brokers.service import Bundle
from tests.unit.http.cluster import run, until

ROW_BYTES = Left(bundle=Bundle(name="", namespace="n", low=0, high=1), token=1).size_bytes


def left(name: str, fetched: bytes | None = None, *, place: int = 0, token: int = 1, handover: bytes | None = None) -> Left:
    """What a bundle left that spans ten points."""
    bundle = Bundle(name=name, namespace="n", low=10 * place, high=10 * place + 10)
    return Left(bundle=bundle, token=token, handover=handover, fetched=fetched)


def test_a_state_is_kept_until_it_is_asked_for_and_not_for_ever() -> None:
    """It may be asked for more than once; its time ends all the same, and so does that of one that was forgotten before."""

    async def story() -> None:
        parted = Parted(bytes_max=10_000, kept_ms=30)
        parted.keep(left("a", b"state"))
        parted.forget(left("never there", place=7).bundle)
        assert [b"state", b"state", None] == [parted.get(bundle) for bundle in ("a", "a", "b")]
        await until(lambda: parted.get("a") is None)

    run(story)


def test_of_too_many_bytes_the_oldest_go() -> None:
    """A bundle that is parted with again counts as new, and its earlier state as nothing; one that left nothing takes room, too."""

    async def story() -> None:
        parted = Parted(bytes_max=3 * ROW_BYTES + 10, kept_ms=60_000)
        for place, (bundle, state) in enumerate((("a", b"aaaa"), ("b", b"bbbb"), ("a", b"AAAA"), ("c", b"cc"), ("d", b"dddd"))):
            parted.keep(left(bundle, state, place=place))
        assert [b"AAAA", None, b"cc", b"dddd"] == [parted.get(bundle) for bundle in "abcd"]
        parted.keep(left("e", place=8))
        assert [None, b"cc", b"dddd"] == [parted.get(bundle) for bundle in "acd"]
        parted.keep(left("f", b"x" * 3 * ROW_BYTES, place=9))
        assert [None] * 3 == [parted.get(bundle) for bundle in "cdf"]

    run(story)


def test_a_state_belongs_to_the_handover_that_it_was_left_with() -> None:
    """With one that somebody else wrote meanwhile it would be delivered twice."""

    async def story() -> None:
        parted = Parted(bytes_max=10_000, kept_ms=60_000)
        parted.keep(left("a", b"state", handover=b"mine"))
        assert [b"state", None] == [parted.belonging_to("a", handover) for handover in (b"mine", b"another's")]
        assert parted.belonging_to("b", b"mine") is None

    run(story)


def test_only_what_nobody_else_can_have_held_is_taken_up_again() -> None:
    """A union goes on under the greater of two tokens, and under any other there was another owner; what is taken up is forgotten."""

    async def story() -> None:
        parted = Parted(bytes_max=10_000, kept_ms=60_000)
        lower, upper, other = left("lower", token=3), left("upper", place=1, token=7), left("other", place=2, token=8)
        for each in (lower, upper, other):
            parted.keep(each)
        union = Bundle(name="union", namespace="n", low=0, high=20)
        assert [[], [lower, upper], []] == [[*parted.of_tenure(union, token)] for token in (8, 7, 9)]
        assert () == parted.of_tenure(Bundle(name="union", namespace="m", low=0, high=20), 7)
        parted.forget(union)
        assert () == parted.of_tenure(union, 7)
        assert (other,) == tuple(parted.of_tenure(other.bundle, 8))

    run(story)
