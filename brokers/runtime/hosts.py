"""Tell hosts and addresses apart, as settings and URLs name them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

# Host, colon and port may be a broker's id: at most 255 characters.
_match_name: Final = re.compile(
    r"(?=.{1,240}\Z)(?!\d+(\.\d+){3}\Z)[A-Za-z0-9]([-A-Za-z0-9_]*)(\.[A-Za-z0-9][-A-Za-z0-9_]*)*\.?"
).fullmatch


def is_host(host: str) -> bool:
    """Return whether a text is an address or the name of a host."""
    return _is_address(host) or _match_name(host) is not None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # The zone of a link-local address means nothing on another machine.


def is_ipv6(host: str) -> bool:
    """Return whether a host is an IPv6 address."""
    return _is_address(host) and isinstance(ip_address(host), IPv6Address)


def is_loopback(host: str | None) -> bool:
    """Return whether only programs of this machine can reach a host: a loopback address, or the
    name `localhost`.
    """
    if host is None:
        return False
    return (
        ip_address(host).is_loopback
        if _is_address(host)
        else host.rstrip(".").lower() == "localhost"
    )


def is_any_address(host: str) -> bool:
    """Return whether a host stands for all addresses of a machine."""
    return _is_address(host) and ip_address(host).is_unspecified


def host_in(url: str) -> str | None:
    """Return the host in the URL that a program advertises; None if it has none."""
    try:
        return urlsplit(url).hostname
    except ValueError:  # Programs may advertise anything.
        return None
