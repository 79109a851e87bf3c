"""Brokers with rights: what each role may do over HTTP and on the Pulsar port, and what becomes of
clients that lose a right.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from equipoise.brokers.http.app import served
from equipoise.brokers.http.authentication import ORIGINAL
from equipoise.brokers.http.rights import need_of
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, ServerError
from equipoise.brokers.security.rights import READ, Right
from tests.pulsar.pulsar_speech import connect, lookup
from tests.unit.pulsar.test_authentication import ran
from tests.unit.pulsar.wire_client import TOPIC, Brokers, Member, brokers
from tests.unit.security.signing import bearer, token
from tests.unit.security.who_may import ASKED, NAMESPACE, RIGHTS, ROLES, SUPER, Asked, token_of

pytestmark = pytest.mark.integration

T = BaseCommand.Type

GRANTS: Mapping[str, object] = {
    "/admin/v2/tenants/public": {"adminRoles": ["tenant"]},
    f"/admin/v2/namespaces/{NAMESPACE}/permissions/producer": ["produce"],
    f"/admin/v2/namespaces/{NAMESPACE}/permissions/consumer": ["consume"],
    "/admin/v2/grants/viewer": "read",
    "/admin/v2/grants/operator": "operate",
    "/admin/v2/grants/admin": "admin",
}


async def changed(member: Member, method: str, path: str, body: object = None) -> None:
    """Have the super role make a change, which must succeed."""
    status, answer = await member.ask(method, path, body)
    assert 204 == status, (path, answer)


@asynccontextmanager
async def granted(folder: Path) -> AsyncIterator[Brokers]:
    """A broker on which each role has its rights."""
    async with brokers(folder, config=dict(RIGHTS), token=token(SUPER)) as running:
        for path, body in GRANTS.items():
            await changed(running.members[0], "POST", path, body)
        yield running


async def is_taken_over_http(
    member: Member, http: aiohttp.ClientSession, asked: Asked, role: str
) -> bool:
    """Return whether a broker takes a request. One that it refuses gets a sentence."""
    assert asked.http is not None
    method, path = asked.http
    text = token_of(role)
    async with http.request(
        method,
        member.http_url + path,
        headers={} if text is None else bearer(text),
        allow_redirects=False,
    ) as answer:
        if answer.status not in (401, 403):
            return True
        problem = await answer.json()
        expected = (401, "NotAuthenticated") if text is None else (403, "NotAuthorized")
        assert expected == (answer.status, problem["error"])
        assert text is None or re.fullmatch(
            rf"role '{role}' may not {method} {re.escape(path)}; it needs .*", problem["reason"]
        )
        return False


async def is_taken_on_the_wire(member: Member, asked: Asked, role: str) -> bool:
    """Return whether a broker takes a command, or refuses it with Pulsar's code."""
    assert asked.command is not None
    text = token_of(role)
    if text is None:
        return False  # The client is disconnected: see `test_authentication`.
    client = await member.client(token=text)
    client.ask(asked.command, **(asked.body or {}))
    answer = await client.answer()
    body = getattr(answer, BaseCommand.DESCRIPTOR.fields_by_number[answer.type].name)
    code = (
        body.error
        if answer.type == T.ERROR
        else getattr(body, "error_code" if hasattr(body, "error_code") else "error", 0)
    )
    await client.close()
    return int(code) != ServerError.AuthorizationError


async def test_each_role_may_do_what_the_table_says_and_no_more(tmp_path: Path) -> None:
    async with granted(tmp_path) as running, aiohttp.ClientSession() as http:
        (member,) = running.members
        for asked in ASKED:
            if asked.http is not None:
                found = {
                    role for role in ROLES if await is_taken_over_http(member, http, asked, role)
                }
            else:
                found = {role for role in ROLES if await is_taken_on_the_wire(member, asked, role)}
            assert asked.may == found, asked


def path_of(resource: web.AbstractResource) -> str:
    """Return a path that a resource takes."""
    pattern = resource.get_info().get("pattern", re.compile(""))

    def part(match: re.Match[str]) -> str:
        first = re.search(rf"\(\?P<{match[1]}>([-\w]+)[|)]", pattern.pattern)
        return (
            first[1]
            if first
            else {"bundle": "0x00000000_0x00000001", "version": "1"}.get(match[1], "x")
        )

    path = re.sub(r"\{([^}]*)\}", part, resource.canonical)
    assert not pattern.pattern or pattern.fullmatch(path), path
    return path


async def test_no_path_is_without_a_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths are those of the application. A role with no right gets only those of services, and
    a viewer changes nothing.
    """
    apps: list[web.Application] = []

    # As `served` takes them.
    def noting(app: web.Application, *others: Any) -> AbstractAsyncContextManager[None]:  # noqa: ANN401
        apps.append(app)
        return served(app, *others)

    monkeypatch.setattr("equipoise.brokers.runtime.broker.served", noting)
    async with granted(tmp_path) as running, aiohttp.ClientSession() as http:
        (member,) = running.members
        routes = {
            (each.method, each.resource.canonical): path_of(each.resource)
            for each in apps[0].router.routes()
            if each.resource
        }
        assert len(routes) > 150
        refused = 0
        for (method, canonical), path in sorted(routes.items()):
            for asked in ("GET", "POST", "PUT", "DELETE") if method == "*" else (method,):
                need = need_of(asked, canonical)
                is_open = canonical in {
                    *("/health", "/ready", "/{path}", "/ws/{path}"),
                    *("/", "/page/{file}"),  # The page's files hold no data.
                }
                assert is_open == (need.right is None), (asked, canonical)
                assert (
                    need.right in {None, Right.READ}
                    or asked not in {"GET", "HEAD"}
                    or "handover" in path
                ), (asked, canonical)
                for role in ("nobody", "viewer"):
                    if need.right is None or (role == "viewer" and need.right is READ.right):
                        continue
                    async with http.request(
                        asked,
                        member.http_url + path,
                        headers=bearer(token(role)),
                        allow_redirects=False,
                    ) as answer:
                        assert 403 == answer.status, (role, asked, path)
                    refused += 1
        metrics = str(await member.get("/metrics"))
        line = next(
            each
            for each in metrics.splitlines()
            if "authorizations_refused_total{" in each and 'surface="http"' in each
        )
        assert refused == float(line.rpartition(" ")[2])


@pytest.mark.parametrize(
    ("role", "path", "body"),
    [
        ("producer", f"/admin/v2/namespaces/{NAMESPACE}/permissions/producer", None),
        ("admin", "/admin/v2/grants/admin", None),
        ("tenant", "/admin/v2/tenants/public", {"adminRoles": []}),
    ],
)
async def test_a_revoked_right_ends_the_producer_and_refuses_the_next_one(
    tmp_path: Path, role: str, path: str, body: object
) -> None:
    """Another role's producer stays."""
    async with granted(tmp_path) as running:
        (member,) = running.members
        client, other = (
            await member.client(token=token(role)),
            await member.client(token=token(SUPER)),
        )
        await client.producer(1)
        await other.producer(1)
        await changed(member, "DELETE" if body is None else "POST", path, body)
        assert 1 == (await client.receive(T.CLOSE_PRODUCER)).close_producer.producer_id
        client.ask_producer(2)
        error = (await client.receive(T.ERROR)).error
        assert (ServerError.AuthorizationError, True) == (
            int(error.error),
            f"role '{role}' may not PRODUCER {TOPIC}" in error.message,
        )
        other.publish(1, 0, "still")
        await other.receipt(1, 0)


async def test_a_revoked_right_ends_the_consumer(tmp_path: Path) -> None:
    """A consumer of a role that may only produce ends, too, if the grant is replaced."""
    async with granted(tmp_path) as running:
        (member,) = running.members
        client = await member.client(token=token("consumer"))
        await client.consumer(1)
        await changed(
            member, "POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/consumer", ["produce"]
        )
        assert 1 == (await client.receive(T.CLOSE_CONSUMER)).close_consumer.consumer_id
        client.ask_consumer(2)
        assert ServerError.AuthorizationError == int((await client.receive(T.ERROR)).error.error)
        await client.producer(1)


async def test_brokers_forward_for_roles_and_need_a_super_role_themselves(tmp_path: Path) -> None:
    """A list of topics comes from both brokers. The role that asks has rights in the namespace
    only.
    """
    async with (
        brokers(tmp_path, count=2, config=dict(RIGHTS), token=token(SUPER)) as running,
        aiohttp.ClientSession() as http,
    ):
        owner = running.owner_of()
        await changed(
            owner, "POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/consumer", ["consume"]
        )
        await running.settled()
        client = await owner.client(token=token("consumer"))
        await client.consumer(1)
        other = running.other_than(owner)
        url = f"{other.http_url}/admin/v2/namespaces/{NAMESPACE}/topics"
        async with http.get(url, headers=bearer(token("consumer"))) as answer:
            assert (200, [TOPIC]) == (answer.status, await answer.json())


async def test_the_python_client_reports_that_its_role_lacks_a_right(tmp_path: Path) -> None:
    """Its program subscribes, and then produces."""
    async with granted(tmp_path) as running:
        file = tmp_path / "token"
        for role, expected in (
            ("nobody", "AuthorizationError"),
            ("consumer", "AuthorizationError"),
            ("tenant", "hello"),
        ):
            file.write_text(token(role), encoding="ascii")
            assert expected in await ran(running.members[0].url, "60", str(file)), role


async def test_a_right_that_is_revoked_while_the_producer_waits_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with granted(tmp_path) as running:
        (member,) = running.members
        serve, waits, goes_on = member.service.serve, asyncio.Event(), asyncio.Event()

        async def serve_later(*arguments: Any) -> Any:  # noqa: ANN401 - as `serve` takes them
            waits.set()
            await goes_on.wait()
            return await serve(*arguments)

        monkeypatch.setattr(member.service, "serve", serve_later)
        client = await member.client(token=token("producer"))
        client.ask_producer(1)
        await waits.wait()
        await changed(member, "DELETE", f"/admin/v2/namespaces/{NAMESPACE}/permissions/producer")
        goes_on.set()
        # It asks again, and is refused for good.
        assert ServerError.MetadataError == int((await client.receive(T.ERROR)).error.error)


async def test_behind_a_proxy_client_and_proxy_need_the_right(tmp_path: Path) -> None:
    """Over HTTP and on the wire. Pulsar's proxy sends a token of its own, and names the client that
    it verified.
    """
    config = {**RIGHTS, "proxy_roles": ("proxy", "poor")}
    async with (
        brokers(tmp_path, config=config, token=token(SUPER)) as running,
        aiohttp.ClientSession() as http,
    ):
        (member,) = running.members
        for role in ("proxy", "me"):
            await changed(
                member, "POST", f"/admin/v2/namespaces/{NAMESPACE}/permissions/{role}", ["produce"]
            )
        for sender, original, expected in (
            ("proxy", "me", 200),
            ("me", "me", 200),
            ("proxy", "nobody", 403),
            ("poor", "me", 403),
            ("me", "proxy", 401),
            ("proxy", None, 401),
            ("proxy", "proxy", 401),
        ):
            headers = bearer(token(sender)) | ({} if original is None else {ORIGINAL: original})
            async with http.get(
                f"{member.http_url}/admin/v2/namespaces/{NAMESPACE}/topics", headers=headers
            ) as answer:
                assert expected == answer.status, (sender, original)
            client = await member.client(handshake=False)
            client.write(connect(token=token(sender), original_principal=original or ""))
            if expected == 401:
                assert ServerError.AuthenticationError == int(
                    (await client.receive(T.ERROR)).error.error
                )
                continue
            await client.receive(T.CONNECTED)
            client.write(lookup(1, TOPIC))
            found = (await client.answer()).lookup_response
            assert (expected == 403) == (found.error == int(ServerError.AuthorizationError)), (
                sender,
                original,
            )
        headers_twice = [*bearer(token("proxy")).items(), (ORIGINAL, "me"), (ORIGINAL, "root")]
        async with http.get(f"{member.http_url}/admin/v2/tenants", headers=headers_twice) as answer:
            assert 401 == answer.status
