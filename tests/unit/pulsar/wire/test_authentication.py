"""Test the authentication of one connection by example: refusals, challenges, and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.wire.authentication import REFRESH_MS
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.errors import ServerError, Violation
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand
from equipoise.brokers.pulsar.wire.requests import Connected, CredentialsSent, LookupAsked, Request
from equipoise.brokers.security.identity import BASIC, Credentials, Fault, Identity, Refusal
from tests.pulsar.pulsar_speech import auth_response, commands_in, connect, lookup, violation

T = BaseCommand.Type
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
PATIENT = Limits(keep_alive_ms=10 * HOUR_MS)


@dataclass
class Check:
    """Accept the credentials `ROLE VALID_MS` or `ROLE`, and nothing else. A password takes
    longer.
    """

    seen: list[Credentials | None] = field(default_factory=list)

    def __call__(self, credentials: Credentials | None) -> Identity | Refusal | None:
        self.seen.append(credentials)
        if credentials is not None and credentials.method == BASIC:
            return None
        if credentials is None:
            return Refusal(fault=Fault.MISSING, problem="there is no token; send one")
        role, _, valid_ms = credentials.data.decode().partition(" ")
        if role == "forged":
            return Refusal(fault=Fault.FORGED, problem="it is forged")
        return Identity(
            role=role, method=credentials.method, valid_ms=int(valid_ms) if valid_ms else None
        )


def connected(data: str, *, refreshes: bool = True) -> Connection:
    """A connection after its handshake at time 0."""
    connection = Connection(limits=PATIENT, now_ms=0, authenticate=Check())
    assert [Connected(client_version="a test")] == connection.receive(
        connect(token=data, refreshes=refreshes), 0
    )
    connection.take_outgoing()
    return connection


def sent(connection: Connection) -> list[str]:
    """The types of the commands to write."""
    return [T.Name(command.type) for command, _ in commands_in(connection.take_outgoing())]


def is_refused(connection: Connection, requests: list[Request], problem: str) -> None:
    """Assert that a connection ended, and that its client learned why."""
    assert Violation.NOT_AUTHENTICATED is violation(requests)
    ((command, _),) = commands_in(connection.take_outgoing())
    assert (2**64 - 1, ServerError.AUTHENTICATION_ERROR) == (
        command.error.request_id,
        int(command.error.error),
    )
    assert problem in command.error.message
    assert connection.is_ended


def test_a_client_without_credentials_learns_why() -> None:
    connection = Connection(limits=Limits(), now_ms=0, authenticate=Check())
    is_refused(connection, connection.receive(connect(), 0), "there is no token")


def test_nothing_behind_a_refused_handshake_is_handled() -> None:
    connection = Connection(limits=Limits(), now_ms=0, authenticate=Check())
    is_refused(
        connection, connection.receive(connect(token="forged") + lookup(1), 0), "it is forged"
    )
    assert [] == connection.receive(lookup(2), 1)


def test_the_check_gets_what_the_client_sent() -> None:
    check = Check()
    for sent_ in (
        connect(token="me"),
        connect(token="", method="tls"),
        connect(token="", method="none"),
        connect(),
    ):
        Connection(limits=Limits(), now_ms=0, authenticate=check).receive(sent_, 0)
    assert [
        Credentials(method="token", data=b"me"),
        Credentials(method="tls", data=b""),
        None,
        None,
    ] == check.seen


def test_without_authentication_credentials_are_ignored() -> None:
    connection = Connection(limits=PATIENT, now_ms=0)
    assert [Connected(client_version="a test")] == connection.receive(connect(token="forged"), 0)
    assert ([], ["CONNECTED"]) == (connection.tick(HOUR_MS), sent(connection))


def test_credentials_without_an_end_are_never_challenged() -> None:
    connection = connected("me")
    assert ([], []) == (connection.tick(HOUR_MS), sent(connection))


def test_a_client_is_challenged_once_before_its_credentials_expire() -> None:
    connection = connected(f"me {HOUR_MS}")
    at_ms = HOUR_MS - REFRESH_MS
    assert ([], []) == (connection.tick(at_ms - 1), sent(connection))
    assert [] == connection.tick(at_ms)
    ((command, _),) = commands_in(connection.take_outgoing())
    challenge = command.auth_challenge
    assert ("token", b"PulsarAuthRefresh", 20) == (
        challenge.challenge.auth_method_name,
        challenge.challenge.auth_data,
        challenge.protocol_version,
    )
    assert ([], []) == (connection.tick(at_ms + 1_000), sent(connection))


def test_fresh_credentials_extend_the_connection() -> None:
    connection = connected(f"me {HOUR_MS}")
    connection.tick(HOUR_MS - REFRESH_MS)
    connection.take_outgoing()
    assert ([], []) == (
        connection.receive(auth_response(f"me {HOUR_MS}"), HOUR_MS - 1_000),
        sent(connection),
    )
    assert ([], []) == (connection.tick(HOUR_MS), sent(connection))
    assert ([], ["AUTH_CHALLENGE"]) == (
        connection.tick(2 * HOUR_MS - 1_000 - REFRESH_MS),
        sent(connection),
    )
    assert [LookupAsked(request_id=1, topic="t")] == connection.receive(
        lookup(1, "t"), 2 * HOUR_MS - 2_000
    )


def test_the_same_credentials_again_are_challenged_after_half_of_the_rest() -> None:
    """A client reads a file that nobody has replaced yet."""
    connection = connected(f"me {MINUTE_MS}")
    assert ([], ["AUTH_CHALLENGE"]) == (connection.tick(30_000), sent(connection))
    connection.receive(auth_response(f"me {MINUTE_MS - 30_000}"), 30_000)
    assert ([], []) == (connection.tick(44_999), sent(connection))
    assert ([], ["AUTH_CHALLENGE"]) == (connection.tick(45_000), sent(connection))


def test_a_client_that_does_not_answer_ends_with_its_credentials() -> None:
    connection = connected(f"me {MINUTE_MS}")
    connection.tick(MINUTE_MS - REFRESH_MS)
    connection.take_outgoing()
    assert [] == connection.tick(MINUTE_MS - 1)
    is_refused(connection, connection.tick(MINUTE_MS), "it did not answer with fresh ones")


def test_a_client_that_cannot_refresh_ends_with_its_credentials() -> None:
    connection = connected(f"me {MINUTE_MS}", refreshes=False)
    assert ([], []) == (connection.tick(MINUTE_MS - 1), sent(connection))
    is_refused(connection, connection.tick(MINUTE_MS), "cannot send fresh ones")


def test_an_answer_for_another_role_or_with_bad_credentials_ends_the_connection() -> None:
    for data, method, problem in (
        ("another", "token", "another role"),
        ("forged", "token", "it is forged"),
        ("me:secret", "basic", "another method"),
    ):
        connection = connected(f"me {MINUTE_MS}")
        connection.tick(MINUTE_MS - REFRESH_MS)
        connection.take_outgoing()
        is_refused(
            connection, connection.receive(auth_response(data, method), MINUTE_MS - 1), problem
        )


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    """Otherwise a client could become another role, or keep a connection beyond its credentials
    without a challenge.
    """
    connection = connected(f"me {MINUTE_MS}")
    assert ([], []) == (connection.receive(auth_response("another"), 1), sent(connection))
    assert ([], ["AUTH_CHALLENGE"]) == (connection.tick(MINUTE_MS - REFRESH_MS), sent(connection))


# --- proxies ---


def test_the_check_gets_for_whom_a_proxy_asks() -> None:
    check = Check()
    for sent_ in (
        connect(token="p", original_principal="me"),
        connect(original_principal="me"),
        connect(original_principal=""),
    ):
        Connection(limits=Limits(), now_ms=0, authenticate=check).receive(sent_, 0)
    assert [
        Credentials(method="token", data=b"p", original="me"),
        Credentials(method="tls", data=b"", original="me"),
        None,
    ] == check.seen


def test_the_credentials_of_another_one_are_refused_and_not_ignored() -> None:
    """Nobody verifies them."""
    check = Check()
    connection = Connection(limits=Limits(), now_ms=0, authenticate=check)
    asked = connect(token="p", original_principal="me", original_auth_data="forged")
    is_refused(
        connection,
        connection.receive(asked + lookup(1), 0),
        "forwardAuthorizationCredentials=false",
    )
    assert [] == check.seen


def test_a_client_behind_a_proxy_is_not_asked_for_the_credentials_of_the_proxy() -> None:
    """Its connection ends with them, and an answer that it sends anyway changes nothing."""
    proxied = Identity(role="me", method="token", valid_ms=MINUTE_MS, proxy="p")
    connection = Connection(limits=PATIENT, now_ms=0, authenticate=lambda _credentials: proxied)
    connection.receive(connect(token="p", original_principal="me"), 0)
    assert ("me", "p", ["CONNECTED"]) == (proxied.role, proxied.proxy, sent(connection))
    assert ([], []) == (connection.tick(MINUTE_MS - 1), sent(connection))
    assert ([], proxied) == (
        connection.receive(auth_response(f"me {HOUR_MS}"), MINUTE_MS - 1),
        connection.identity,
    )
    is_refused(connection, connection.tick(MINUTE_MS), "have expired")


# --- a check that takes longer ---

PASSWORD = Credentials(method=BASIC, data=b"me:secret")
ME = Identity(role="me", method=BASIC, valid_ms=None)


def held(more: bytes = b"") -> Connection:
    """A connection whose credentials are being checked since time 0."""
    connection = Connection(limits=PATIENT, now_ms=0, authenticate=Check())
    assert [CredentialsSent(credentials=PASSWORD)] == connection.receive(
        connect(token="me:secret", method=BASIC) + more, 0
    )
    assert (True, []) == (connection.is_held, sent(connection))
    return connection


@given(st.data())
def test_nothing_is_handled_before_the_check_and_all_of_it_in_order_afterwards(
    data: st.DataObject,
) -> None:
    """Whatever chunks the bytes behind CONNECT come in, some of them before the end of the
    check.
    """
    behind = b"".join(lookup(number, f"t{number}") for number in range(4))
    ends = sorted(data.draw(st.lists(st.integers(0, len(behind)), min_size=3, max_size=3)))
    first, second, third, rest = (
        behind[start:end] for start, end in zip((0, *ends), (*ends, len(behind)), strict=True)
    )
    connection = held(first)
    assert ([], [], []) == (
        connection.receive(second, 1),
        connection.receive(third, 2),
        sent(connection),
    )
    requests = (
        connection.authenticated(ME, 3) + connection.receive(b"", 3) + connection.receive(rest, 4)
    )
    while connection.reader.has_more:
        requests += connection.receive(b"", 4)
    assert [
        Connected(client_version="a test"),
        *(LookupAsked(request_id=n, topic=f"t{n}") for n in range(4)),
    ] == requests
    assert ["CONNECTED"] == sent(connection)


def test_a_refusal_after_a_check_ends_the_connection() -> None:
    connection = held(lookup(1))
    is_refused(
        connection,
        connection.authenticated(Refusal(fault=Fault.WRONG, problem="it is wrong"), 1),
        "it is wrong",
    )
    assert ([], []) == (connection.receive(lookup(2), 2), sent(connection))


def test_a_check_after_the_end_changes_nothing() -> None:
    connection = held()
    connection.end()
    assert ([], []) == (connection.authenticated(ME, 1), sent(connection))


def test_a_check_that_takes_too_long_ends_the_connection() -> None:
    assert Violation.NO_HANDSHAKE is violation(held().tick(PATIENT.handshake_ms))
