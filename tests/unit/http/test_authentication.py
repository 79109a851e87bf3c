"""A broker with authentication answers only to valid tokens, on every path, and sends its own token
to other brokers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable

import pytest

from equipoise.brokers.cli.commands.broker_commands import _status
from equipoise.brokers.http.authentication import OPEN_PATHS
from equipoise.brokers.operations import asking
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.security.own_token import TOKEN_VARIABLE
from equipoise.brokers.security.tokens import TOKEN_BYTES_MAX
from equipoise.channel.core.errors import PeerError
from equipoise.channel.system.clocks import Deadline
from tests.unit.http.cluster import Answer, Broker, Cluster, told, with_broker, with_cluster
from tests.unit.security.signing import PASSWORDS, SETTINGS, basic, bearer, token

TENANTS = "/admin/v2/tenants"


# Each with the reason that is counted.
NO_TOKENS = (
    (f"Bearer {token(exp=1)}", "expired"),
    (f"Bearer {token(key=b'x' * 32)}", "forged"),
    (f"Bearer {token()[:-8]}", "malformed"),
    (f"Bearer {token()}x.y", "malformed"),
    ("Bearer", "missing"),
    ("Basic bWU6c2VjcmV0", "unknown"),
    ("tls x", "unknown"),
    (token(), "unknown"),
    ("Bearer \xe9", "malformed"),
)
NO_PASSWORDS = (
    (basic("me", "wrong")["Authorization"], "wrong"),
    (basic("nobody", "secret")["Authorization"], "wrong"),
    ("Basic", "malformed"),
    ("Basic me:secret", "malformed"),
    ("Basic bWU=", "malformed"),
    ("basic bWU6c2VjcmV0 more", "malformed"),
)


async def with_header(broker: Broker, header: str, path: str = TENANTS) -> Answer:
    """The answer to a request with this header Authorization."""
    return await broker.ask("GET", path, headers={"Authorization": header})


async def refusals(broker: Broker) -> Counter[str]:
    """How many credentials HTTP refused for each reason, by the broker's metrics."""
    text = (await with_header(broker, f"Bearer {token()}", "/metrics")).body.decode()
    counts = re.findall(
        r'authentications_refused_total{.*reason="(\w+)",surface="http"} (\d+)', text
    )
    return +Counter({reason: int(count) for reason, count in counts})


@with_broker(**SETTINGS)
async def test_probes_need_no_token_and_say_more_with_one(broker: Broker) -> None:
    """Only their GET is open. The test of brokers with Pulsar's service walks over all other
    paths.
    """
    for path in OPEN_PATHS:
        methods = ("GET", "HEAD", "POST")
        answers = [(await broker.ask(method, path)).status for method in methods]
        assert [200, 200, 401] == answers
        document = (await with_header(broker, f"Bearer {token()}", path)).json()
        assert isinstance(document, dict)
        assert broker.id == document["broker"]
    assert 401 == (await broker.get("/health/x")).status
    row = await _status(broker.id, broker.url, Deadline.after(timeout_ms=20_000))
    assert ("ready", [f"it says more only with valid credentials; set {TOKEN_VARIABLE}"]) == (
        row["status"],
        row["problems"],
    )
    broker.worker.client_problems["x"] = "a problem for insiders"
    invalid = (*NO_TOKENS[:1], ("Basic bWU6c2VjcmV0", ""), ("", ""))
    for header, _ in invalid:
        for path, expected in (
            ("/health", (200, {"status": "ok"})),
            ("/ready", (503, {"status": "not ready"})),
        ):
            answer = await with_header(broker, header, path)
            assert expected == (answer.status, answer.json())
    await broker.worker.stop()
    for header, _ in invalid:
        answer = await with_header(broker, header, "/health")
        assert (503, {"status": "not ready"}) == (answer.status, answer.json())


@with_broker(**SETTINGS)
async def test_a_token_opens_all_paths(broker: Broker) -> None:
    """Up to the longest one that the page about authentication names."""
    for header in (f"Bearer {token()}", f"bearer  {token()} "):
        assert 200 == (await with_header(broker, header)).status
    assert (404, "UnknownPath") == told(await with_header(broker, f"Bearer {token()}", "/nowhere"))
    room = (TOKEN_BYTES_MAX - len(token(x="")) - 8) * 3 // 4
    for size, statuses in ((room, {200}), (TOKEN_BYTES_MAX * 3 // 4, {400, 401})):
        sent = token(x="x" * size)
        assert (TOKEN_BYTES_MAX - 700 < len(sent) <= TOKEN_BYTES_MAX) == (statuses == {200})
        assert (await with_header(broker, f"Bearer {sent}")).status in statuses


@with_broker(**SETTINGS)
async def test_other_credentials_are_refused_with_a_sentence_and_counted(broker: Broker) -> None:
    for header, reason in NO_TOKENS:
        answer = await with_header(broker, header)
        assert (401, "NotAuthenticated") == told(answer)
        assert answer.reason.startswith("the request is not authenticated: ")
        secret = header.removeprefix("Bearer").split()[-1:]
        assert not [part for part in secret if part in answer.reason]
        has_code = 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
        assert has_code == (reason != "missing")
    assert Counter(reason for _, reason in NO_TOKENS) == await refusals(broker)


@with_broker(**PASSWORDS)
async def test_a_password_opens_all_paths_beside_tokens(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> Awaitable[asking.Reply]:
        return asking.ask_at(
            broker.id, broker.url, "GET", TENANTS, deadline=Deadline.after(timeout_ms=20_000)
        )

    for header in (basic("me", "secret"), basic("me", "secret"), bearer(token())):
        assert 200 == (await broker.ask("GET", TENANTS, headers=header)).status
    refused = await broker.ask("GET", TENANTS)
    assert "there are no credentials; send a token, or send a user and a password" in refused.reason
    assert "Basic realm=" in ", ".join(refused.headers.values())
    # A command takes either from the environment.
    assert 401 == (await ask()).status
    for given in (token(), "basic:me:secret"):
        monkeypatch.setenv(TOKEN_VARIABLE, given)
        assert 200 == (await ask()).status


@with_broker(**PASSWORDS)
async def test_other_passwords_are_refused_and_counted(broker: Broker) -> None:
    for header, _ in NO_PASSWORDS:
        assert (401, "NotAuthenticated") == told(await with_header(broker, header))
    assert Counter(reason for _, reason in NO_PASSWORDS) == await refusals(broker)


@with_cluster(**SETTINGS)
async def test_a_broker_sends_its_token_to_no_address_that_a_forged_record_names(
    made: Cluster,
) -> None:
    (broker,) = made.brokers
    assert broker.worker.access.own_token.headers(broker.url)
    for url in ("http://evil.example", "https://evil.example", "http://10.0.0.9:8080"):
        forged = Peer(broker="b", addresses={"http": url})
        with pytest.raises(PeerError, match="the token is not sent to"):
            # What an ownership calls.
            await broker.worker._ownerships.fetch_spilled(  # noqa: SLF001
                forged, made.bundles()[0], "0"
            )
