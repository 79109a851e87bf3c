"""Check users and passwords against a password file, as Apache's `htpasswd` writes it and Pulsar's basic authentication reads it.

A hash is slow on purpose (bcrypt takes 60 ms and more), so it is computed in a thread, one at a time, and a good password is remembered for
a while.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from passlib.hash import apr_md5_crypt, bcrypt

from equipoise.brokers.security.identity import BASIC, Credentials, Fault, Identity, Refusal, is_role

COST_MIN: Final = 4
COST_MAX: Final = 14
"""The bounds of the cost of a bcrypt hash. Each step doubles the time of a check: at most a second here."""

WAITING_MAX: Final = 64
"""Passwords that wait for their check. At 60 ms each the last waits 4 s, well within the 30 s of a handshake."""

SHARE: Final = 16
"""How many of them one client may have, so that wrong passwords from one address do not refuse the users of others."""

REMEMBERED_S: Final = 300
"""How long after its last use a good password is hashed again. Users in service are never refused because others send wrong passwords."""

# One thread for all brokers of a process: hashes take one core at most, and nothing else waits for them.
_HASHING: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")

_REMEMBERED_MAX: Final = 4_096
_CREDENTIALS_BYTES_MAX: Final = 4_096
_LINE_CHARACTERS_MAX: Final = 2_048

_match_bcrypt: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}").fullmatch
_match_apr1: Final = re.compile(r"\$apr1\$[./A-Za-z0-9]{1,8}\$[./A-Za-z0-9]{22}").fullmatch

_WRONG: Final = Refusal(fault=Fault.WRONG, problem="the user is unknown, or the password is wrong; check both")


def parse_users(data: bytes) -> Mapping[str, str]:
    """Return the hashes of a password file by user: lines `USER:HASH`. Empty lines and those that begin with `#` are skipped.

    Raise ValueError for the first line that cannot be used. It has the number of the line, and nothing of its content.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise ValueError(f"line {number} is not UTF-8 text; write it again with htpasswd -B") from None
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
        return None if _match_apr1(hashed) else "has a hash that is neither bcrypt (htpasswd -B) nor MD5 (htpasswd -m)"
    return None if COST_MIN <= int(match[1]) <= COST_MAX else f"has a bcrypt hash whose cost is not within {COST_MIN} and {COST_MAX}"


class PasswordVerifier:
    """Checks passwords of the users of one file."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users` is what `parse_users` returns."""
        self._users = users
        # An unknown user takes as long as a known one. Otherwise the time would tell who is known.
        self._decoy = max(users.values(), key=_slowness, default=None)
        # Digests of good credentials, and when they are forgotten. A key of this process: digests are worthless elsewhere.
        self._key = secrets.token_bytes(32)
        self._good = OrderedDict[bytes, float]()
        # The hashes that are not yet computed, and their clients. A caller that goes away does not end a hash that has begun.
        self._hashes: list[tuple[str, concurrent.futures.Future[Identity | Refusal]]] = []

    def check(self, credentials: Credentials, now_s: float) -> Identity | Refusal | None:
        """Return who sent credentials, or why they are refused; None if a hash must be computed: then await `verify`. Never raises."""
        user, password = _parts(credentials.data)
        if user is None:
            return Refusal(fault=Fault.MALFORMED, problem="the credentials cannot be used: they are not USER:PASSWORD; send them again")
        if self._decoy is None:
            return _WRONG
        digest = self._digest(user, password)
        until_s = self._good.get(digest)
        if until_s is None or not now_s < until_s <= now_s + REMEMBERED_S:
            return None
        self._good[digest] = now_s + REMEMBERED_S
        return _identity(user)

    async def verify(self, credentials: Credentials, now_s: float, *, client: str) -> Identity | Refusal:
        """Return who sent credentials, or why they are refused, and compute the hash in a thread. `client` is the address of the sender."""
        self._hashes = [(each, hashing) for each, hashing in self._hashes if not hashing.done()]
        if len(self._hashes) >= WAITING_MAX or sum(each == client for each, _ in self._hashes) >= SHARE:
            return Refusal(fault=Fault.BUSY, problem="too many other passwords are being checked; try again in some seconds")
        hashing = _HASHING.submit(self.verify_now, credentials, now_s)
        self._hashes.append((client, hashing))
        return await asyncio.wrap_future(hashing)

    def verify_now(self, credentials: Credentials, now_s: float) -> Identity | Refusal:
        """Do the same in this thread. One of the same credentials may have been first."""
        checked = self.check(credentials, now_s)
        if checked is not None:
            return checked
        user, password = _parts(credentials.data)
        assert user is not None, "checked above"
        hashed = self._users.get(user)
        if not _matches(password, hashed or self._decoy or "") or hashed is None:
            return _WRONG
        self._good[self._digest(user, password)] = now_s + REMEMBERED_S
        while len(self._good) > _REMEMBERED_MAX:
            self._good.popitem(last=False)
        return _identity(user)

    def _digest(self, user: str, password: bytes) -> bytes:
        return hmac.digest(self._key, user.encode() + b":" + password, "sha256")


def _parts(data: bytes) -> tuple[str | None, bytes]:
    """Return the user, or None if there is none, and the password, which may contain colons (RFC 7617)."""
    name, colon, password = data.partition(b":")
    if not colon or len(data) > _CREDENTIALS_BYTES_MAX:
        return None, b""
    with suppress(UnicodeDecodeError):
        user = name.decode()
        if is_role(user):
            return user, password
    return None, b""


def _slowness(hashed: str) -> int:
    match = _match_bcrypt(hashed)
    return 0 if match is None else int(match[1])


def _matches(password: bytes, hashed: str) -> bool:
    """Return whether a hash is of a password. The libraries compare in constant time."""
    try:
        return bool((bcrypt if hashed.startswith("$2") else apr_md5_crypt).verify(password, hashed))
    except (ValueError, TypeError):  # bcrypt takes at most 72 bytes, and no null character.
        return False


def _identity(user: str) -> Identity:
    return Identity(role=user, method=BASIC, valid_ms=None)
