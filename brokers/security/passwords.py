"""Check users and passwords against a password file, as Apache's `htpasswd` writes it and Pulsar's
basic authentication reads it.

A hash is slow on purpose (bcrypt takes 60 ms and more), so it is computed in a thread, one at a
time, and a good password is remembered for a while.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from passlib.hash import apr_md5_crypt, bcrypt

from equipoise.brokers.security.identity import (
    BASIC,
    Credentials,
    Fault,
    Identity,
    Refusal,
    is_role,
)

COST_MIN: Final = 4
COST_MAX: Final = 14
"""The bounds of the cost of a bcrypt hash. Each step doubles the time of a check: at most a second
here."""

WAITING_MAX: Final = 64
"""Passwords that wait for their check. At 60 ms each the last waits 4 s, well within the 30 s of a
handshake."""

SHARE: Final = 16
"""How many of them one client may have, so that wrong passwords from one address do not refuse the
users of others."""

REMEMBERED_S: Final = 300
"""How long after its last use a good password is hashed again. Users in service are never refused
because others send wrong passwords."""

WRONG_FREE: Final = 10
"""Wrong passwords in a row, of one user or from one address, that cost no pause. Each further one
doubles the pause from 1 s on."""

WRONG_PAUSE_S_MAX: Final = 64
"""The longest pause. A guesser tries 1,350 passwords a day, and a user whom others keep out gets a
turn each minute."""

# Users and addresses whose wrong passwords are counted. The oldest make room. One takes some 200
# bytes.
_WRONG_MAX: Final = 4_096

# One thread for all brokers of a process: hashes take one core at most, and nothing else waits for
# them.
_HASHING: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")

_REMEMBERED_MAX: Final = 4_096
_CREDENTIALS_BYTES_MAX: Final = 4_096
_LINE_CHARACTERS_MAX: Final = 2_048

_match_bcrypt: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}").fullmatch
_match_apr1: Final = re.compile(r"\$apr1\$[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}").fullmatch

_WRONG: Final = Refusal(
    fault=Fault.WRONG, problem="the user is unknown, or the password is wrong; check both"
)


def parse_users(data: bytes) -> Mapping[str, str]:
    """Return the hashes of a password file by user: lines `USER:HASH`. Empty lines and those that
    begin with `#` are skipped.

    Raise ValueError for the first line that cannot be used. It has the number of the line, and
    nothing of its content.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise ValueError(
                f"line {number} is not UTF-8 text; write it again with htpasswd -B"
            ) from None
        if not text or text.startswith("#"):
            continue
        user, colon, hashed = text.partition(":")
        problem = None
        if not colon or not is_role(user) or len(text) > _LINE_CHARACTERS_MAX:
            problem = "is not USER:HASH"
        elif user in users:
            problem = "has a user of a line above"
        else:
            problem = _problem_of(hashed)
        if problem is not None:
            raise ValueError(f"line {number} {problem}; write it again with htpasswd -B")
        users[user] = hashed
    return users


def _problem_of(hashed: str) -> str | None:
    match = _match_bcrypt(hashed)
    if match is None:
        return (
            None
            if _match_apr1(hashed)
            else "has a hash that is neither bcrypt (htpasswd -B) nor MD5 (htpasswd -m)"
        )
    return (
        None
        if COST_MIN <= int(match[1]) <= COST_MAX
        else f"has a bcrypt hash whose cost is not within {COST_MIN} and {COST_MAX}"
    )


class PasswordVerifier:
    """Checks passwords of the users of one file."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users` is what `parse_users` returns."""
        self._users = users
        # One hash of each algorithm and cost in the file. Each check computes all of them, with the
        # user's own in its place: the time must not tell who is known, nor how its hash was made.
        self._decoys = {_shape(hashed): hashed for hashed in users.values()}
        self._wrong = _WrongPasswords()
        # Digests of good credentials, and when they are forgotten. A key of this process: digests
        # are worthless elsewhere.
        self._key = secrets.token_bytes(32)
        self._good = OrderedDict[bytes, float]()
        # The hashes that are not yet computed, and their clients. A caller that goes away does not
        # end a hash that has begun.
        self._hashes: list[tuple[str, concurrent.futures.Future[Identity | Refusal]]] = []

    def check(self, credentials: Credentials, now_s: float) -> Identity | Refusal | None:
        """Return who sent credentials, or why they are refused; None if a hash must be computed:
        then await `verify`. Never raises.
        """
        user, password = _parts(credentials.data)
        if user is None:
            return Refusal(
                fault=Fault.MALFORMED,
                problem=(
                    "the credentials cannot be used: they are not USER:PASSWORD; send them again"
                ),
            )
        if not self._decoys:
            return _WRONG
        digest = self._digest(user, password)
        until_s = self._good.get(digest)
        if until_s is None or not now_s < until_s <= now_s + REMEMBERED_S:
            return None
        self._good[digest] = now_s + REMEMBERED_S
        return _identity(user)

    async def verify(
        self, credentials: Credentials, now_s: float, *, client: str
    ) -> Identity | Refusal:
        """Return who sent credentials, or why they are refused, and compute the hash in a thread.
        `client` is the address of the sender.
        """
        names = _keys_of(credentials, client)
        pause_s = max(self._wrong.pause_s(name, now_s) for name in names)
        if pause_s:
            problem = (
                "too many wrong passwords came for this user, or from this address; try again in"
                f" {pause_s} s"
            )
            return Refusal(fault=Fault.BUSY, problem=problem)
        self._hashes = [(each, hashing) for each, hashing in self._hashes if not hashing.done()]
        if (
            len(self._hashes) >= WAITING_MAX
            or sum(each == client for each, _ in self._hashes) >= SHARE
        ):
            return Refusal(
                fault=Fault.BUSY,
                problem="too many other passwords are being checked; try again in some seconds",
            )
        hashing = _HASHING.submit(self._counted, credentials, now_s, names)
        self._hashes.append((client, hashing))
        return await asyncio.wrap_future(hashing)

    def _counted(
        self, credentials: Credentials, now_s: float, names: Sequence[str]
    ) -> Identity | Refusal:
        """Verify in this thread, and count a wrong password, also if its sender has gone away."""
        checked = self.verify_now(credentials, now_s)
        if isinstance(checked, Refusal):
            self._wrong.add(names, now_s)
        else:
            # Not the address: its owner may have a user of its own beside those that it guesses.
            self._wrong.forget(names[0])
        return checked

    def verify_now(self, credentials: Credentials, now_s: float) -> Identity | Refusal:
        """Do the same in this thread. One of the same credentials may have been first."""
        checked = self.check(credentials, now_s)
        if checked is not None:
            return checked
        user, password = _parts(credentials.data)
        assert user is not None, "checked above"
        hashed = self._users.get(user)
        hashes = self._decoys if hashed is None else self._decoys | {_shape(hashed): hashed}
        matching = [each for each in hashes.values() if _matches(password, each)]
        if hashed not in matching:
            return _WRONG
        self._good[self._digest(user, password)] = now_s + REMEMBERED_S
        while len(self._good) > _REMEMBERED_MAX:
            self._good.popitem(last=False)
        return _identity(user)

    def _digest(self, user: str, password: bytes) -> bytes:
        return hmac.digest(self._key, user.encode() + b":" + password, "sha256")


def _parts(data: bytes) -> tuple[str | None, bytes]:
    """Return the user, or None if there is none, and the password, which may contain colons (RFC
    7617).
    """
    name, colon, password = data.partition(b":")
    if not colon or len(data) > _CREDENTIALS_BYTES_MAX:
        return None, b""
    with suppress(UnicodeDecodeError):
        user = name.decode()
        if is_role(user):
            return user, password
    return None, b""


class _WrongPasswords:
    """Wrong passwords in a row, and when the last one came, by user and by address."""

    def __init__(self) -> None:
        self._counted = OrderedDict[str, tuple[int, float]]()

    def pause_s(self, name: str, now_s: float) -> int:
        """Return how long until the next password of a user or an address is checked; 0 if it is
        now.
        """
        times, last_s = self._counted.get(name, (0, 0.0))
        pause_s = (
            0 if times < WRONG_FREE else min(1 << min(times - WRONG_FREE, 16), WRONG_PAUSE_S_MAX)
        )
        # Clocks of machines go back, too.
        return math.ceil(min(max(last_s + pause_s - now_s, 0), pause_s))

    def add(self, names: Sequence[str], now_s: float) -> None:
        """Count a wrong password."""
        for name in names:
            times, last_s = self._counted.pop(name, (0, now_s))
            self._counted[name] = (times if now_s - last_s < REMEMBERED_S else 0) + 1, now_s
            while len(self._counted) > _WRONG_MAX:
                self._counted.popitem(last=False)

    def forget(self, name: str) -> None:
        """Note a right password."""
        self._counted.pop(name, None)


def _keys_of(credentials: Credentials, client: str) -> Sequence[str]:
    """Return under which names a wrong password is counted: its user's first."""
    return f"user {_parts(credentials.data)[0]}", f"client {client}"


def _shape(hashed: str) -> str:
    """Return what decides how long a hash takes: its algorithm, and its cost."""
    match = _match_bcrypt(hashed)
    return "apr1" if match is None else f"bcrypt {match[1]}"


def _matches(password: bytes, hashed: str) -> bool:
    """Return whether a hash is of a password. The libraries compare in constant time."""
    try:
        return bool((bcrypt if hashed.startswith("$2") else apr_md5_crypt).verify(password, hashed))
    except (ValueError, TypeError):  # bcrypt takes at most 72 bytes, and no null character.
        return False


def _identity(user: str) -> Identity:
    return Identity(role=user, method=BASIC, valid_ms=None)
