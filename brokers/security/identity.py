"""Define who a client is, and why its credentials are refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TOKEN: Final = "token"  # noqa: S105 - a name on the wire
"""The method of authentication by a token, as Pulsar names it on the wire."""

BASIC: Final = "basic"
"""The method of authentication by a user and a password, which are sent as `USER:PASSWORD`."""

TLS: Final = "tls"
"""The method of authentication by the certificate of the connection. The client sends nothing else."""

ROLE_CHARACTERS_MAX: Final = 1_024
"""The longest role."""


class Surface(StrEnum):
    """Where a client connects; a label of the counter of refusals."""

    HTTP = "http"
    PULSAR = "pulsar"


class Fault(StrEnum):
    """What is wrong with credentials; a label of the counter of refusals.

    * `missing`: there are none.
    * `malformed`: they cannot be read, or name no role.
    * `forged`: the signature is not by a configured key, or by an algorithm that does not belong to it.
    * `wrong`: the user is unknown, or the password is another one.
    * `expired`: they are not valid now.
    * `unknown`: they are of another method, or for another audience.
    * `busy`: too many other passwords are being checked.
    """

    MISSING = "missing"
    MALFORMED = "malformed"
    FORGED = "forged"
    WRONG = "wrong"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client sent to prove who it is. `method` is Pulsar's name; `data` is secret, so `repr` leaves it out."""

    method: str
    data: bytes

    def __repr__(self) -> str:
        return f"Credentials(method={self.method!r}, data=***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A client that proved who it is. `valid_ms` is how long its credentials remain valid, or None without an end."""

    role: str
    method: str
    valid_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why credentials are refused: `fault` is for counters, `problem` for people. Neither contains a part of the credentials."""

    fault: Fault
    problem: str


def is_role(name: object) -> bool:
    """Return whether a name can be a role: printable text. Control characters would forge lines of logs."""
    return isinstance(name, str) and 0 < len(name) <= ROLE_CHARACTERS_MAX and name.isprintable()
