"""Define who a client is, and why its credentials are refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

TOKEN: Final = "token"  # noqa: S105 - a name on the wire
"""The method of authentication by a token, as Pulsar names it on the wire."""

BASIC: Final = "basic"
"""The method of authentication by a user and a password, which are sent as `USER:PASSWORD`."""

TLS: Final = "tls"
"""The method of authentication by the certificate of the connection. The client sends nothing
else."""

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
    * `forged`: the signature is not by a configured key, or by an algorithm that does not belong to
      it.
    * `wrong`: the user is unknown, or the password is another one.
    * `expired`: they are not valid now.
    * `unknown`: they are of another method, or for another audience.
    * `proxy`: a proxy does not name its client, or a client that is no proxy names another one.
    * `busy`: too many other passwords are being checked.
    """

    MISSING = "missing"
    MALFORMED = "malformed"
    FORGED = "forged"
    WRONG = "wrong"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    PROXY = "proxy"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client sent to prove who it is. `method` is Pulsar's name; `data` is secret, so `repr`
    leaves it out.

    `original` is the role that it names for the client behind it, as a proxy does.
    """

    method: str
    data: bytes
    original: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(method={self.method!r}, data=***, original={self.original!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A client that proved who it is. `valid_ms` is how long its credentials remain valid, or None
    without an end.

    Behind a proxy, `role` is that of the client, and `proxy` that of the proxy, which proved
    itself. Both need the rights.
    """

    role: str
    method: str
    valid_ms: int | None
    proxy: str | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that need the rights for what the client does."""
        return (self.role,) if self.proxy is None else (self.role, self.proxy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why credentials are refused: `fault` is for counters, `problem` for people. Neither contains
    a part of the credentials.
    """

    fault: Fault
    problem: str


def behind_proxy(
    sender: Identity, original: str | None, proxy_roles: Collection[str]
) -> Identity | Refusal:
    """Return for whom `sender` asks if it names the role `original`. Pulsar has the same rule.

    A role of `proxy_roles` must name a client, which is no proxy. Any other may only name itself.
    """
    named = original if original and not original.isspace() else None
    if sender.role not in proxy_roles:
        if named in (None, sender.role):
            return sender
        problem = (
            "its role may not name another one as the original principal; only a role of"
            " proxy_roles may"
        )
    elif named is None:
        problem = (
            "its role is one of proxy_roles, and it names no original principal; have the proxy"
            " authenticate its clients"
        )
    elif named in proxy_roles:
        problem = "the original principal is one of proxy_roles, too; a proxy must name its client"
    elif not is_role(named):
        return Refusal(
            fault=Fault.MALFORMED,
            problem="the original principal is no role: 1 to 1,024 printable characters",
        )
    else:
        return replace(sender, role=named, proxy=sender.role)
    return Refusal(fault=Fault.PROXY, problem=problem)


def is_role(name: object) -> bool:
    """Return whether a name can be a role: printable text. Control characters would forge lines of
    logs.
    """
    return isinstance(name, str) and 0 < len(name) <= ROLE_CHARACTERS_MAX and name.isprintable()
