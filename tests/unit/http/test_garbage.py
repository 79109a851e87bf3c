"""Garbage at every path: a broker answers it without a traceback, and goes on serving."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.http.cluster import DEADLINE_S, NAMESPACE, Answer, Broker, Cluster, cluster

pytestmark = pytest.mark.integration

RANGE = "0x00000000_0xffffffff"
# A wait of a poll is no garbage: it would only make the test slow.
WAITING = ("timeout_ms=0", "timeout_ms=1")

names = st.sampled_from(["acme", "shop", "new", ".", "..", "%2e%2e", "a%2Fb", "", " "]) | st.text(
    max_size=12
)
ranges = st.sampled_from([RANGE, "0x00000000_0x80000000", "LARGEST", "0x0_0x1"]) | st.text(
    max_size=24
)
namespaces = st.just(NAMESPACE) | st.builds("{}/{}".format, names, names)
paths = st.one_of(
    st.builds("/admin/v2/tenants/{}".format, names),
    st.builds("/admin/v2/namespaces/{}".format, namespaces),
    st.builds(
        "/admin/v2/namespaces/{}/{}".format,
        namespaces,
        st.sampled_from(["bundles", "unload", "antiAffinity"]),
    ),
    st.builds(
        "/admin/v2/clusters/{}/namespaceIsolationPolicies/{}".format,
        st.just("equipoise") | names,
        names,
    ),
    st.builds("/admin/v2/policies/pin/{}".format, names),
    st.builds(
        "/admin/v2/controls/{}/{}".format,
        st.sampled_from(["pause", "freeze", "maintenance", "domain-maintenance"]),
        namespaces | names,
    ),
    st.builds("/admin/v2/controls/quarantine/{}/{}".format, namespaces, ranges),
    st.builds(
        "/admin/v2/namespaces/{}/{}/{}".format,
        namespaces,
        ranges,
        st.sampled_from(["unload", "split", "merge"]),
    ),
    st.builds("/admin/v2/brokers/{}".format, names),
    st.builds(
        "/lookup/v2/topic/{}/{}/{}".format,
        st.sampled_from(["persistent", "non-persistent"]) | names,
        namespaces,
        names,
    ),
    st.builds("/lookup/v2/topic/persistent/{}/{}/bundle".format, namespaces, names),
    st.builds("/v1/assignment/{}".format, namespaces),
    st.builds("/v1/{}/{}/{}".format, st.sampled_from(["bundle", "handover"]), namespaces, ranges),
    st.text(max_size=40).map("/{}".format),
)
queries = st.dictionaries(
    st.sampled_from(
        ["destinationBroker", "splitAlgorithmName", "after", "unload", "authoritative", "force"]
    )
    | st.text(max_size=8),
    st.sampled_from(["", "-1", "nobody:1", "specified_positions_divide", "9" * 30])
    | st.text(max_size=12),
    max_size=3,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["bundles", "numBundles", "boundaries"]), inner, max_size=3
        )
        | st.dictionaries(
            st.sampled_from(
                [
                    "namespaces",
                    "primary",
                    "auto_failover_policy",
                    "namespace",
                    "brokers",
                    "reason",
                    "for_ms",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
bodies = st.binary(max_size=64) | values.map(lambda value: json.dumps(value).encode())
headers = st.dictionaries(
    st.sampled_from(["Content-Type", "X-Request-Id", "Content-Encoding", "Expect", "Range"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)
    | st.sampled_from(["gzip", "deflate", "100-continue"]),
    max_size=2,
)


class Running:
    """A loop with a cluster of one broker, which runs only while it is asked."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._parts = AsyncExitStack()
        folder = Path(self._parts.enter_context(tempfile.TemporaryDirectory()))
        # A stop that drains would have no other broker to drain to.
        self.brokers: Cluster = self._runner.run(
            self._parts.enter_async_context(cluster(folder, bundles=1, admin_ms=500, lookup_ms=50))
        )

    @property
    def broker(self) -> Broker:
        return self.brokers.brokers[0]

    def ask(self, method: str, path: str, body: bytes | None, header: dict[str, str]) -> Answer:
        """One request and its answer, within a deadline."""
        return self._runner.run(
            asyncio.wait_for(self.broker.ask(method, path, data=body, headers=header), DEADLINE_S)
        )

    def close(self) -> None:
        """End the broker and the loop."""
        self._runner.run(self._parts.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with closing(Running()) as made:
        yield made


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A request, and how it is refused: HEAD without words."""

    method: str
    path: str
    status: int
    error: str = ""
    told: str = ""
    header: dict[str, str] = field(default_factory=dict)


NAMESPACES = "/admin/v2/namespaces"
REFUSED = (
    Refused(
        method="GET",
        path="/nowhere",
        status=404,
        error="UnknownPath",
        told="there is no path '/nowhere' at this broker",
    ),
    Refused(
        method="GET",
        path="/admin/v2/non-persistent/acme/shop/orders/stats",
        status=404,
        error="UnknownPath",
        told=(
            "this broker serves no Pulsar topics, so it does not have"
            " '/admin/v2/non-persistent/acme/shop/orders/stats'; ask a broker"
        ),
    ),
    Refused(method="GET", path="/index.html", status=404, error="UnknownPath", told="html'"),
    Refused(method="GET", path="/%0A", status=404, error="UnknownPath", told="'/\\n'"),
    Refused(method="GET", path="//health", status=404, error="UnknownPath", told="'//health'"),
    Refused(method="GET", path="/health/", status=404, error="UnknownPath", told="'/health/'"),
    Refused(
        method="GET",
        path=f"{NAMESPACES}/acme/%2e%2e/bundles",
        status=412,
        error="InvalidName",
        told="'acme/..' is not a namespace",
    ),
    Refused(
        method="GET",
        path=f"{NAMESPACES}/a%2Fb/shop/bundles",
        status=412,
        error="InvalidName",
        told="'a/b/shop' is not a namespace",
    ),
    Refused(
        method="GET",
        path=f"{NAMESPACES}/acme/%E2%82/bundles",
        status=412,
        error="InvalidName",
        told="is not a namespace",
    ),
    Refused(
        method="GET",
        path=f"{NAMESPACES}/acme/%00/bundles",
        status=412,
        error="InvalidName",
        told="is not a namespace",
    ),
    Refused(
        method="GET",
        path=f"{NAMESPACES}/acme/{'x' * 4_000}/bundles",
        status=412,
        error="InvalidName",
        told="is not a namespace",
    ),
    Refused(
        method="POST",
        path="/health",
        status=405,
        error="MethodNotAllowed",
        told="'/health' does not support POST; use GET, HEAD",
    ),
    Refused(method="HEAD", path=f"/v1/assignment/{NAMESPACE}", status=405),
    Refused(
        method="PATCH",
        path=f"{NAMESPACES}/{NAMESPACE}",
        status=405,
        error="MethodNotAllowed",
        told="use DELETE, GET, HEAD, PUT",
    ),
    Refused(
        method="GET",
        path="/lookup/v2/topic/persistent/acme/shop",
        status=412,
        error="InvalidName",
        told="path of a topic",
    ),
    Refused(
        method="PUT",
        path="/lookup/v2/topic/persistent/acme/shop/x",
        status=405,
        error="MethodNotAllowed",
        told="GET, HEAD",
    ),
    Refused(
        method="GET",
        path="/health",
        header={"Expect": "eggs"},
        status=417,
        error="UnknownExpectation",
        told="'eggs' is not supported",
    ),
    Refused(
        method="GET",
        path=f"/v1/assignment/{NAMESPACE}?after=1&after=2",
        status=400,
        error="InvalidRequest",
        told="it is given 2 times",
    ),
    *(
        Refused(
            method="GET",
            path=f"/v1/assignment/{NAMESPACE}?{query}",
            status=400,
            error="InvalidRequest",
            told="is not an integer from 0 to",
        )
        for query in (
            "after=-1",
            "after=x",
            "after=",
            f"after={2**63}",
            "timeout_ms=300001",
            "after=1&timeout_ms=%00",
            "after=%C2%B2",
        )
    ),
    *(
        Refused(
            method="GET",
            path=f"/admin/v2/balancing/decisions?limit={limit}",
            status=400,
            error="InvalidRequest",
            told="is not an integer from 0 to 1000",
        )
        for limit in ("-1", "1001", "many")
    ),
    *(
        Refused(method="GET", path=f"/lookup/v2/topic/{topic}", status=412, error="InvalidName")
        for topic in (
            "",
            f"{NAMESPACE}/orders",
            f"persistent/{NAMESPACE}/",
            f"persistent/{NAMESPACE}/%FF",
            f"persistent/{NAMESPACE}/%20",
            f"persistent/{NAMESPACE}/a%2Fb",
            f"persistent/{NAMESPACE}/{'x' * 2_100}",
            f"volatile/{NAMESPACE}/orders",
            "persistent/acme/a%20b/orders",
            f"persistent/acme/cluster/{NAMESPACE}/orders",
        )
    ),
    *(
        Refused(
            method="GET",
            path=f"/lookup/v2/topic/persistent/acme/nowhere/orders{rest}",
            status=404,
            error="UnknownNamespace",
        )
        for rest in ("", "/bundle")
    ),
)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.method} {case.path[:40]}")
def test_refusals_have_a_json_reason(running: Running, case: Refused) -> None:
    answer = running.ask(case.method, case.path, None, case.header)
    assert (case.status, case.status == 405) == (answer.status, "Allow" in answer.headers)
    assert answer.headers["X-Request-Id"]
    assert "equipoise" == answer.headers["Server"], "it names no version"
    if case.method == "HEAD":
        assert b"" == answer.body
    else:
        assert (case.error, True) == (json.loads(answer.body)["error"], case.told in answer.reason)


def test_a_client_that_expects_100_continue_may_send_its_body(running: Running) -> None:
    header = {"Expect": "100-continue"}
    answer = running.ask("PUT", f"{NAMESPACES}/acme/unheard", b"[]", header)
    assert (400, True) == (answer.status, "object" in answer.reason)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS"]),
    path=paths,
    query=queries,
    waiting=st.sampled_from(WAITING),
    body=st.none() | bodies,
    header=headers,
)
def test_any_request_is_answered(
    running: Running,
    *,
    method: str,
    path: str,
    query: dict[str, str],
    waiting: str,
    body: bytes | None,
    header: dict[str, str],
) -> None:
    spelled = quote(path, safe="/%", errors="replace")
    parameters = "&".join(
        [
            waiting,
            *(
                f"{quote(name, errors='replace')}={quote(value, errors='replace')}"
                for name, value in query.items()
            ),
        ]
    )
    answer = running.ask(method, f"{spelled}?{parameters}", body, header)
    assert answer.status < 500 or answer.status in (503, 504), answer
    assert b"Traceback" not in answer.body
    if answer.status >= 400 and method != "HEAD":
        assert answer.reason
        assert {"reason", "error"} == set(json.loads(answer.body))
        assert answer.headers["X-Request-Id"]
    assert 200 == running.ask("GET", "/health", None, {}).status


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.binary(max_size=200)
    | st.binary(max_size=100).map(
        lambda rest: b"GET /health HTTP/1.1\r\nHost: x\r\n" + rest + b"\r\n\r\n"
    )
)
def test_any_bytes_are_answered_400_or_not_at_all(running: Running, data: bytes) -> None:
    async def talk() -> bytes:
        host, port = running.broker.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    # The loop of the broker.
    answer = running._runner.run(asyncio.wait_for(talk(), DEADLINE_S))  # noqa: SLF001
    assert b"Traceback" not in answer
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert 200 == running.ask("GET", "/health", None, {}).status
