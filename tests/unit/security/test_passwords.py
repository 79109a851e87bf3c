"""Which password files are read, and which passwords are accepted."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.security import passwords
from equipoise.brokers.security.identity import BASIC, Credentials, Fault, Identity, Refusal
from equipoise.brokers.security.passwords import REMEMBERED_S, SHARE, WAITING_MAX, PasswordVerifier, parse_users

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
    with pytest.raises(ValueError, match=rf"^line 5 .*{problem}.*; write it again with htpasswd -B$") as caught:
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
def test_only_the_right_password_of_a_user_is_accepted(verifier: PasswordVerifier, text: str | bytes, expected: str) -> None:
    assert expected == outcome(verifier, text)


@given(st.binary(max_size=80))
def test_no_other_bytes_are_accepted(data: bytes) -> None:
    verifier = PasswordVerifier(parse_users(FILE))
    assert outcome(verifier, data) in {"wrong", "malformed"} or data in {b"me:secret", b"you:secret"}


def test_a_good_password_is_hashed_again_after_a_while(verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verifier.check(sent("me:secret"), NOW_S) is None
    verifier.verify_now(sent("me:secret"), NOW_S)
    verifier.verify_now(sent("me:wrong"), NOW_S)
    monkeypatch.setattr(passwords, "_matches", None)
    for at_s, is_known in ((NOW_S - 1, False), (NOW_S + REMEMBERED_S, False), (NOW_S, True)):
        assert is_known == isinstance(verifier.check(sent("me:secret"), at_s), Identity)
    assert verifier.check(sent("me:wrong"), NOW_S) is None


def test_an_unknown_user_takes_a_hash_too(verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one as slow as the slowest: the time does not tell who is known."""
    seen: list[str] = []

    def matches(_password: bytes, hashed: str) -> bool:
        seen.append(hashed)
        return True

    monkeypatch.setattr(passwords, "_matches", matches)
    assert "wrong" == outcome(verifier, "nobody:secret")
    assert [BCRYPT] == seen


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


async def test_hashes_are_computed_one_at_a_time_beside_the_loop(verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number waits, and the loop runs meanwhile."""
    slow = Slow(monkeypatch)
    tasks = [asyncio.ensure_future(verifier.verify(sent(f"me:{number}"), NOW_S, client=f"{number % 8}")) for number in range(WAITING_MAX)]
    await slow.began.wait()
    refused = await verifier.verify(sent("me:one more"), NOW_S, client="another")
    assert Fault.BUSY is getattr(refused, "fault", None)
    assert 1 == len(slow.threads)
    slow.go.set()
    assert WAITING_MAX == len([each for each in await asyncio.gather(*tasks) if isinstance(each, Identity)])
    assert threading.get_ident() not in slow.threads
    assert not isinstance(await verifier.verify(sent("me:one more"), NOW_S, client="another"), Refusal)


async def test_one_client_cannot_take_the_places_of_others(verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    tasks = [asyncio.ensure_future(verifier.verify(sent(f"me:{number}"), NOW_S, client="greedy")) for number in range(WAITING_MAX)]
    await slow.began.wait()
    modest = asyncio.ensure_future(verifier.verify(sent("you:secret"), NOW_S, client="modest"))
    slow.go.set()
    assert WAITING_MAX - SHARE == sum(getattr(each, "fault", None) is Fault.BUSY for each in await asyncio.gather(*tasks))
    assert isinstance(await modest, Identity)


async def test_a_client_that_goes_away_starts_no_second_hash(verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be stopped, so its place is free when it ends. Hashes that have not begun are left out."""
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
    assert 2 == len(slow.threads)


async def test_a_password_in_use_is_not_hashed_again(verifier: PasswordVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier.verify_now(sent("me:secret"), NOW_S)
    monkeypatch.setattr(passwords, "_matches", None)
    for times in range(5):
        assert isinstance(verifier.check(sent("me:secret"), NOW_S + times * (REMEMBERED_S - 1)), Identity)
