"""Which password files are read, and which passwords are accepted."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.security import passwords
from equipoise.brokers.security.identity import BASIC, Credentials, Fault, Identity, Refusal
from equipoise.brokers.security.passwords import (
    REMEMBERED_S,
    SHARE,
    WAITING_MAX,
    WRONG_FREE,
    PasswordVerifier,
    parse_users,
)

NOW_S = 1_800_000_000.0
BCRYPT = "$2y$04$l8D0wG5qCaxDu2CpBJmfnuiE1gU6x4eO0nX8jDw3zKwJptUd1SBsq"
APR1 = "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"
"""Both are of the password `secret`, as htpasswd and `openssl passwd` write them."""

FILE = f"# users of a test\n\nme:{BCRYPT}\r\n you:{APR1} \n".encode()


def sent(text: str | bytes) -> Credentials:
    return Credentials(method=BASIC, data=text.encode() if isinstance(text, str) else text)


def outcome(verifier: PasswordVerifier, text: str | bytes) -> str:
    """The role of the client, or the reason of its refusal."""
    found = verifier.verify_now(sent(text), NOW_S)
    return found.role if isinstance(found, Identity) else found.fault.value


@pytest.fixture
def verifier() -> PasswordVerifier:
    return PasswordVerifier(parse_users(FILE))


def test_the_file_of_htpasswd_is_read() -> None:
    assert {"me": BCRYPT, "you": APR1} == parse_users(FILE)
    assert {} == parse_users(b"")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"hush", "is not USER:HASH"),
        (b":hush", "is not USER:HASH"),
        (b"hu\tsh:x", "is not USER:HASH"),
        (b"hush:" + b"x" * 3_000, "is not USER:HASH"),
        (b"hush:hushhush", "neither bcrypt"),
        (b"hush:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "neither bcrypt"),
        (b"hush:" + BCRYPT.replace("$04$", "$15$").encode(), "cost is not within 4 and 14"),
        (b"hush:" + BCRYPT.encode()[:-1], "neither bcrypt"),
        (b"hush:" + APR1.encode() + b":more", "neither bcrypt"),
        (b"hush\xff:x", "is not UTF-8 text"),
        (b"me:" + APR1.encode(), "has a user of a line above"),
    ],
)
def test_a_broken_line_is_named_by_its_number_only(line: bytes, problem: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^line 5 .*{problem}.*; write it again with htpasswd -B$"
    ) as caught:
        parse_users(FILE + line + b"\n")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("me:secret", "me"),
        ("you:secret", "you"),
        ("me:secrets", "wrong"),
        ("me:", "wrong"),
        ("you:Secret", "wrong"),
        ("nobody:secret", "wrong"),
        ("me:" + "x" * 100, "wrong"),
        ("me:se\0cret", "wrong"),
        ("me", "malformed"),
        ("", "malformed"),
        (":secret", "malformed"),
        ("m\ne:secret", "malformed"),
        (b"m\xffe:secret", "malformed"),
        ("me:" + "x" * 5_000, "malformed"),
    ],
)
def test_only_the_right_password_of_a_user_is_accepted(
    verifier: PasswordVerifier, text: str | bytes, expected: str
) -> None:
    assert expected == outcome(verifier, text)


@given(st.binary(max_size=80))
def test_no_other_bytes_are_accepted(data: bytes) -> None:
    verifier = PasswordVerifier(parse_users(FILE))
    assert outcome(verifier, data) in {"wrong", "malformed"} or data in {
        b"me:secret",
        b"you:secret",
    }


def test_a_good_password_is_hashed_again_after_a_while(
    verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verifier.check(sent("me:secret"), NOW_S) is None
    verifier.verify_now(sent("me:secret"), NOW_S)
    verifier.verify_now(sent("me:wrong"), NOW_S)
    monkeypatch.setattr(passwords, "_matches", None)
    for at_s, is_known in ((NOW_S - 1, False), (NOW_S + REMEMBERED_S, False), (NOW_S, True)):
        assert is_known == isinstance(verifier.check(sent("me:secret"), at_s), Identity)
    assert verifier.check(sent("me:wrong"), NOW_S) is None


def test_a_check_does_the_same_work_for_every_user_known_or_not(
    verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a file of several kinds of hashes: the time does not tell who is known."""
    seen: list[str] = []
    matches = passwords._matches  # noqa: SLF001

    def noted(password: bytes, hashed: str) -> bool:
        seen.append(passwords._shape(hashed))  # noqa: SLF001
        return matches(password, hashed)

    monkeypatch.setattr(passwords, "_matches", noted)
    work = {}
    for text in ("nobody:secret", "me:wrong", "you:wrong", "me:secret", "you:secret"):
        seen.clear()
        outcome(verifier, text)
        work[text] = sorted(seen)
    assert 1 == len(set(map(tuple, work.values()))), work
    assert 2 == len(work["nobody:secret"])


async def test_wrong_passwords_cost_a_pause_of_their_user_and_of_their_address(
    verifier: PasswordVerifier,
) -> None:
    async def tried(text: str, client: str, after_s: float = 0) -> str:
        checked = await verifier.verify(sent(text), NOW_S + after_s, client=client)
        return checked.fault.value if isinstance(checked, Refusal) else checked.role

    assert ["wrong"] * WRONG_FREE == [
        await tried(f"nobody:{number}", "guesser") for number in range(WRONG_FREE)
    ]
    assert ["busy", "busy", "you"] == [
        await tried("nobody:x", "else"),
        await tried("you:secret", "guesser"),
        await tried("you:secret", "third"),
    ]
    assert ["wrong", "busy", "wrong"] == [
        await tried("nobody:x", "guesser", after_s) for after_s in (1, 2.5, 3)
    ]
    assert ["busy", "you"] == [
        await tried("you:secret", "guesser", after_s) for after_s in (3 + 3, 3 + 4)
    ]
    assert ["wrong"] == [await tried("nobody:x", "else", 3 + REMEMBERED_S)]


async def test_a_right_password_ends_the_pause_of_its_user_only(verifier: PasswordVerifier) -> None:
    for number in range(WRONG_FREE - 1):
        await verifier.verify(sent(f"me:{number}"), NOW_S, client=f"client {number}")
    assert isinstance(await verifier.verify(sent("me:secret"), NOW_S, client="own"), Identity)
    wrong = [
        await verifier.verify(sent(f"me:{number}"), NOW_S, client="own")
        for number in range(WRONG_FREE + 1)
    ]
    assert [Fault.WRONG] * WRONG_FREE + [Fault.BUSY] == [
        getattr(each, "fault", None) for each in wrong
    ]


def test_the_users_and_addresses_that_are_counted_are_bounded() -> None:
    counted = passwords._WrongPasswords()  # noqa: SLF001
    for number in range(2 * passwords._WRONG_MAX):  # noqa: SLF001
        counted.add([str(number)], NOW_S)
    assert passwords._WRONG_MAX == len(counted._counted)  # noqa: SLF001


class Slow:
    """A hash that takes until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop = asyncio.get_running_loop()
        self.began, self.go = asyncio.Event(), threading.Event()
        self.threads: list[int] = []
        monkeypatch.setattr(passwords, "_matches", self._matches)

    def _matches(self, _password: bytes, _hashed: str) -> bool:
        self.threads.append(threading.get_ident())
        self._loop.call_soon_threadsafe(self.began.set)
        return self.go.wait(60)


async def test_hashes_are_computed_one_at_a_time_beside_the_loop(
    verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number waits, and the loop runs meanwhile."""
    slow = Slow(monkeypatch)
    tasks = [
        asyncio.ensure_future(verifier.verify(sent(f"me:{number}"), NOW_S, client=f"{number % 8}"))
        for number in range(WAITING_MAX)
    ]
    await slow.began.wait()
    refused = await verifier.verify(sent("me:one more"), NOW_S, client="another")
    assert Fault.BUSY is getattr(refused, "fault", None)
    assert 1 == len(slow.threads)
    slow.go.set()
    assert WAITING_MAX == len(
        [each for each in await asyncio.gather(*tasks) if isinstance(each, Identity)]
    )
    assert threading.get_ident() not in slow.threads
    assert not isinstance(
        await verifier.verify(sent("me:one more"), NOW_S, client="another"), Refusal
    )


async def test_one_client_cannot_take_the_places_of_others(
    verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    tasks = [
        asyncio.ensure_future(verifier.verify(sent(f"me:{number}"), NOW_S, client="greedy"))
        for number in range(WAITING_MAX)
    ]
    await slow.began.wait()
    modest = asyncio.ensure_future(verifier.verify(sent("you:secret"), NOW_S, client="modest"))
    slow.go.set()
    assert WAITING_MAX - SHARE == sum(
        getattr(each, "fault", None) is Fault.BUSY for each in await asyncio.gather(*tasks)
    )
    assert isinstance(await modest, Identity)


async def test_a_client_that_goes_away_starts_no_second_hash(
    verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped, so its place is free when it ends. Hashes that have not begun are
    left out.
    """
    slow = Slow(monkeypatch)
    for number in range(2 * SHARE):
        task = asyncio.ensure_future(verifier.verify(sent(f"me:{number}"), NOW_S, client="c"))
        await asyncio.sleep(0)
        await slow.began.wait()
        task.cancel()
        await asyncio.wait([task])
    assert 1 == len(slow.threads)
    slow.go.set()
    assert isinstance(await verifier.verify(sent("me:secret"), NOW_S, client="c"), Identity)
    assert 4 == len(slow.threads)  # Two checks, of two kinds of hashes each.


async def test_a_password_in_use_is_not_hashed_again(
    verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier.verify_now(sent("me:secret"), NOW_S)
    monkeypatch.setattr(passwords, "_matches", None)
    for times in range(5):
        assert isinstance(
            verifier.check(sent("me:secret"), NOW_S + times * (REMEMBERED_S - 1)), Identity
        )
