"""A broker with authentication answers only to valid tokens, on every path, and sends its own token
to other brokers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.cli.commands.broker_commands import _status
from equipoise.brokers.http.authentication import OPEN_PATHS
from equipoise.brokers.operations import asking
from equipoise.brokers.runtime.service import Peer
from equipoise.brokers.security.own_token import TOKEN_VARIABLE
from equipoise.brokers.security.tokens import TOKEN_BYTES_MAX
from equipoise.channel.core.errors import PeerError
from equipoise.channel.system.deadline import Deadline
from tests.unit.http.cluster import cluster, told
from tests.unit.security.signing import PASSWORDS, SETTINGS, basic, bearer, token

TENANTS = "/admin/v2/tenants"


def refusals(text: str, reason: str) -> float:
    """How many credentials HTTP refused for a reason, by the broker's metrics."""
    line = next(
        line
        for line in text.splitlines()
        if "authentications_refused_total{" in line and f'reason="{reason}",surface="http"' in line
    )
    return float(line.rpartition(" ")[2])


async def test_the_probes_need_no_token(tmp_path: Path) -> None:
    """Only their GET is open. The test of brokers with Pulsar's service walks over all other
    paths.
    """
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        found = {
            (path, method): (await broker.ask(method, path)).status
            for path in OPEN_PATHS
            for method in ("GET", "HEAD", "POST")
        }
        assert found == {(path, method): 401 if method == "POST" else 200 for path, method in found}
        assert 401 == (await broker.get("/health/x")).status


@pytest.mark.parametrize(
    "headers", [{}, bearer(token(exp=1)), {"Authorization": "Basic bWU6c2VjcmV0"}]
)
async def test_probes_without_a_valid_token_get_only_the_status(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        broker.worker.client_problems["x"] = "a problem for insiders"
        for path, status, shown in (
            ("/health", 200, {"status": "ok"}),
            ("/ready", 503, {"status": "not ready"}),
        ):
            answer = await broker.ask("GET", path, headers=headers)
            assert (status, shown) == (answer.status, answer.json())
        await broker.worker.stop()
        answer = await broker.ask("GET", "/health", headers=headers)
        assert (503, {"status": "not ready"}) == (answer.status, answer.json())


async def test_probes_with_a_token_get_everything(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        for path in OPEN_PATHS:
            document = (await broker.ask("GET", path, headers=bearer(token()))).json()
            assert isinstance(document, dict)
            assert broker.id == document["broker"]


async def test_the_status_of_a_broker_without_a_token_says_how_to_see_more(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        row = await asyncio.to_thread(
            _status, broker.id, broker.url, Deadline.after(timeout_ms=20_000)
        )
        assert ("ready", [f"it says more only with valid credentials; set {TOKEN_VARIABLE}"]) == (
            row["status"],
            row["problems"],
        )


async def test_a_token_opens_all_paths(tmp_path: Path) -> None:
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        for header in (f"Bearer {token()}", f"bearer  {token()} "):
            assert (
                200 == (await broker.ask("GET", TENANTS, headers={"Authorization": header})).status
            )
        assert (404, "UnknownPath") == told(
            await broker.ask("GET", "/nowhere", headers=bearer(token()))
        )


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (f"Bearer {token(exp=1)}", "expired"),
        (f"Bearer {token(key=b'x' * 32)}", "forged"),
        (f"Bearer {token()[:-8]}", "malformed"),
        (f"Bearer {token()}x.y", "malformed"),
        ("Bearer", "missing"),
        ("Basic bWU6c2VjcmV0", "unknown"),
        ("tls x", "unknown"),
        (token(), "unknown"),
        ("Bearer \xe9", "malformed"),
    ],
)
async def test_other_credentials_are_refused_with_a_sentence_and_counted(
    tmp_path: Path, header: str, reason: str
) -> None:
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        answer = await broker.ask("GET", TENANTS, headers={"Authorization": header})
        assert (401, "NotAuthenticated") == told(answer)
        assert answer.reason.startswith("the request is not authenticated: ")
        assert not [
            part for part in header.removeprefix("Bearer").split()[-1:] if part in answer.reason
        ]
        assert ('error="invalid_token"' in answer.headers["WWW-Authenticate"]) == (
            reason != "missing"
        )
        metrics = (await broker.ask("GET", "/metrics", headers=bearer(token()))).body.decode()
        assert 1 == refusals(metrics, reason)


async def test_without_authentication_any_header_is_ignored(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        (broker,) = made.brokers
        assert (
            200
            == (
                await broker.ask("GET", TENANTS, headers={"Authorization": "Bearer nonsense"})
            ).status
        )
        assert 0 == refusals((await broker.get("/metrics")).body.decode(), "malformed")


async def test_a_command_takes_its_token_or_password_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, **PASSWORDS) as made:
        (broker,) = made.brokers

        def ask() -> asking.Answer:
            return asking.ask_at(
                broker.id, broker.url, "GET", TENANTS, deadline=Deadline.after(timeout_ms=20_000)
            )

        assert 401 == (await asyncio.to_thread(ask)).status
        for given in (token(), "basic:me:secret"):
            monkeypatch.setenv(TOKEN_VARIABLE, given)
            assert 200 == (await asyncio.to_thread(ask)).status


async def test_a_password_opens_all_paths_beside_tokens(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PASSWORDS) as made:
        (broker,) = made.brokers
        for header in (basic("me", "secret"), basic("me", "secret"), bearer(token())):
            assert 200 == (await broker.ask("GET", TENANTS, headers=header)).status
        refused = await broker.ask("GET", TENANTS)
        assert (
            "there are no credentials; send a token, or send a user and a password"
            in refused.reason
        )
        assert "Basic realm=" in ", ".join(refused.headers.values())


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (basic("me", "wrong")["Authorization"], "wrong"),
        (basic("nobody", "secret")["Authorization"], "wrong"),
        ("Basic", "malformed"),
        ("Basic me:secret", "malformed"),
        ("Basic bWU=", "malformed"),
        ("basic bWU6c2VjcmV0 more", "malformed"),
    ],
)
async def test_other_passwords_are_refused_and_counted(
    tmp_path: Path, header: str, reason: str
) -> None:
    async with cluster(tmp_path, **PASSWORDS) as made:
        (broker,) = made.brokers
        assert (401, "NotAuthenticated") == told(
            await broker.ask("GET", TENANTS, headers={"Authorization": header})
        )
        metrics = (await broker.ask("GET", "/metrics", headers=bearer(token()))).body.decode()
        assert 1 == refusals(metrics, reason)


async def test_a_broker_sends_its_token_to_no_address_that_a_forged_record_names(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        assert broker.worker.access.own_token.headers(broker.url)
        for url in ("http://evil.example", "https://evil.example", "http://10.0.0.9:8080"):
            forged = Peer(broker="b", addresses={"http": url})
            with pytest.raises(PeerError, match="the token is not sent to"):
                # What an ownership calls.
                await broker.worker._arrival(forged, made.bundles()[0]).whole()  # noqa: SLF001


async def test_the_longest_token_fits_into_a_request(tmp_path: Path) -> None:
    """What the page about authentication names is what holds."""
    shortest = len(token(x=""))
    async with cluster(tmp_path, **SETTINGS) as made:
        (broker,) = made.brokers
        for size, statuses in (
            (TOKEN_BYTES_MAX - shortest - 8, {200}),
            (TOKEN_BYTES_MAX, {400, 401}),
        ):
            sent = token(x="x" * (size * 3 // 4))
            assert (len(sent) <= TOKEN_BYTES_MAX) == (statuses == {200})
            assert (await broker.ask("GET", TENANTS, headers=bearer(sent))).status in statuses
        assert TOKEN_BYTES_MAX - 700 < len(
            token(x="x" * ((TOKEN_BYTES_MAX - shortest - 8) * 3 // 4))
        )
