"""The admin API is asked over HTTP. Each way in which it fails is a sentence, and a redirect only
changes the broker.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.pulsar_cluster.admin import PulsarAdmin, RequestFailed
from equipoise.pulsar_cluster.credentials import (
    NOBODY,
    NotSent,
    Reply,
    Request,
    exchange_by,
    with_files,
)
from tests.unit.pulsar_cluster.made_clusters import admin_of, answers, host_of, path_of

BUNDLE = "public/default/0x00000000_0x40000000"
UNLOAD = "/admin/v2/namespaces/public/default/0x00000000_0x40000000/unload"
SETTLED_MS = 1_795_870_200_000
BEFORE, AFTER = ("2026-11-28T12:49:59.59259189Z", "2026-11-28T12:50:01.073532374Z")
TRACE = (
    '{"reason": "\\n --- An unexpected error occurred in the server ---\\n\\nMessage: it is there'
    ' already\\n\\nStacktrace:\\n\\njava.lang"}'
)
DENIED = '{"reason": "not allowed"}'


@pytest.mark.parametrize(
    ("found", "call", "expected"),
    [
        (
            {"/brokers": ["b:8080", "a:8080"]},
            PulsarAdmin.brokers,
            ("a:8080", "b:8080"),
        ),
        (
            {"/brokers/leaderBroker": {"serviceUrl": "http://b:8080", "brokerId": "b:8080"}},
            PulsarAdmin.leader,
            "b:8080",
        ),
        ({}, PulsarAdmin.leader, None),
        (
            {"/persistent/t/n": ["persistent://t/n/x"]},
            lambda admin: admin.topics_of("t/n/0x0_0x1"),
            ("persistent://t/n/x",),
        ),
        (
            {"/persistent/t/n/x/stats": {"msgInCounter": 7}},
            lambda admin: admin.topic_stats("persistent://t/n/x"),
            {"msgInCounter": 7},
        ),
        ({}, lambda admin: admin.topic_stats("persistent://t/n/gone"), None),
    ],
)
def test_a_question_is_answered(
    found: dict[str, object], call: Callable[[PulsarAdmin], object], expected: object
) -> None:
    assert expected == call(admin_of(answers(path_of, found)))


def test_policies_are_read_where_they_are_set() -> None:
    """Names of groups are compared without regard to case. Domains count only if the cluster uses
    them.
    """
    api = answers(
        path_of,
        {
            "/clusters/east/namespaceIsolationPolicies": {
                "bank": {"namespaces": ["bank/.*"], "primary": ["a"], "secondary": []}
            },
            "/clusters/east/failureDomains": {
                "x": {"brokers": ["a:8080"]},
                "y": {"brokers": ["a:8080", "b:8080"]},
            },
            "/namespaces/t/one/antiAffinity": "Group",
        },
    )
    settings = {
        "clusterName": "east",
        "failureDomainsEnabled": "true",
        "loadBalancerBrokerMaxTopics": "7",
    }
    found = admin_of(api).policies(["t/one", "t/two"], settings)
    assert (["bank"], {"t/one": "group"}, {"a:8080": "x", "b:8080": "y"}, 7) == (
        [policy.name for policy in found.isolations],
        found.groups,
        found.domains,
        found.topics_max,
    )
    assert {} == admin_of(api).policies([], {"clusterName": "east"}).domains


def test_the_figures_of_topics_add_up_to_loads_of_bundles() -> None:
    """A broker renews the rates once a minute. Until then a bundle whose clients have just
    connected has none.
    """
    topic = {
        "msgRateIn": 20.0,
        "msgRateOut": 5.0,
        "msgThroughputIn": 4_000.0,
        "msgThroughputOut": 1_000.0,
        "producerCount": 2,
        "subscriptions": {"s": {"consumers": [{}, {}]}},
    }
    nameless = {"msgRateIn": 0.0, "producerCount": 1}
    bundles = {
        "0x0_0x1": {"x": topic, "y": topic},
        "0x1_0x2": {"z": nameless | {"publishers": [{"connectedSince": AFTER}]}},
        "0x2_0x3": {},
        "0x3_0x4": {"z": nameless | {"publishers": [{"connectedSince": BEFORE}]}},
        "0x4_0x5": {"z": nameless},
    }
    stats = {"t/n": {key_range: {"persistent": topics} for key_range, topics in bundles.items()}}
    found = admin_of(answers(path_of, {"/broker-stats/topics": stats})).bundle_loads(
        "b:8080", settled_ms=SETTLED_MS
    )
    assert [(50.0, 10_000.0, 2, 4, 4), None, (0.0, 0.0, 0, 0, 0), (0.0, 0.0, 1, 1, 0), None] == [
        load
        and (
            load.traffic.messages_per_second,
            load.traffic.bytes_per_second,
            load.topics,
            load.producers,
            load.consumers,
        )
        for load in found.values()
    ]


@pytest.mark.parametrize("absurd", ["NaN", -3.0, "Infinity", True])
def test_a_topic_with_an_absurd_figure_makes_the_load_of_its_bundle_unknown(absurd: object) -> None:
    """Of no other one. The topic is named."""
    good, bad = {"msgRateIn": 20.0}, {"msgRateIn": absurd}
    stats = {
        "t/n": {
            "0x0_0x1": {"persistent": {"x": good, "y": bad}},
            "0x1_0x2": {"persistent": {"z": good}},
        }
    }
    admin = admin_of(answers(path_of, {"/broker-stats/topics": stats}))
    found = admin.bundle_loads("b:8080", settled_ms=SETTLED_MS)
    assert [None, 20.0] == [load and load.traffic.messages_in_per_second for load in found.values()]
    assert {"y": f"msgRateIn={absurd!r}"} == admin.implausible


def test_a_broker_whose_own_address_cannot_be_reached_has_no_figures() -> None:
    """A missing right is an error as ever. After 3 such brokers no further one is asked: a proxy
    hides them all.
    """
    asked: list[Request] = []
    found = admin_of(answers(host_of, {"d": Reply(403), "*": NotSent("filtered")}, asked))
    with pytest.raises(OperatorError):
        found.bundle_loads("d:8080", settled_ms=SETTLED_MS)
    for broker in ("a:8080", "b:8080", "c:8080", "e:8080"):
        assert {} == found.bundle_loads(broker, settled_ms=SETTLED_MS)
    assert ["d", "a", "b", "c"] == [host_of(request) for request in asked]
    assert ["a:8080", "b:8080", "c:8080", "e:8080"] == list(found.without_figures)
    assert "http://a:8080 cannot be reached: filtered" in found.without_figures["a:8080"]


def test_with_tls_a_broker_is_asked_at_the_port_of_the_given_url_too() -> None:
    """The id of a broker with both ports has the one without TLS."""
    asked: list[Request] = []
    by_origin = answers(
        lambda request: request.url[:14],
        {"https://b:8080": NotSent("wrong version"), "*": {}},
        asked,
    )
    found = admin_of(by_origin, "https://a:8443")
    assert ({}, {}) == (
        found.bundle_loads("b:8080", settled_ms=SETTLED_MS),
        found.without_figures,
    )
    assert ["https://b:8080", "https://b:8443"] == [request.url[:14] for request in asked]


def test_an_unload_goes_to_the_owner_with_the_token(tmp_path: Path) -> None:
    """A redirect that names another destination, or another path, is not believed in that."""
    (tmp_path / "token").write_text("secret\n")
    asked: list[Request] = []
    location = "http://b:8080/admin/v2/brokers/shutdown?authoritative=true&destinationBroker=evil:1"
    api = answers(host_of, {"a": Reply(307, location=location), "b": Reply(204)}, asked)
    admin_of(api, credentials=with_files(NOBODY, tmp_path / "token", None)).unload(BUNDLE, "c:8080")
    wanted = f"http://a:8080{UNLOAD}?destinationBroker=c%3A8080"
    assert [
        ("PUT", wanted, "Bearer secret"),
        ("PUT", f"{wanted.replace('//a', '//b')}&authoritative=true", "Bearer secret"),
    ] == [(request.method, request.url, request.headers["Authorization"]) for request in asked]


@pytest.mark.parametrize(
    ("answer", "told", "status", "in_doubt", "sent"),
    [
        (NotSent("refused"), "http://b:8080 cannot be reached: refused; check --admin", None, 0, 2),
        # What may have arrived is not sent again.
        (TimeoutError(), "http://a:8080 did not answer in time", None, True, 1),
        (ConnectionResetError("reset"), "a:8080 broke the connection: reset", None, True, 1),
        (HTTPException("cut"), "a:8080 broke the connection: cut", None, True, 1),
        (Reply(404, TRACE), "a:8080 answered 404: it is there already", 404, False, 1),
        (Reply(412, TRACE), "a:8080 answered 412: it is there already", 412, False, 1),
        # A broker that fails may have begun.
        (Reply(500, TRACE), "a:8080 answered 500: it is there already", 500, True, 1),
        (Reply(503, "<html>", "Away"), "a:8080 answered 503: <html>", 503, True, 1),
        (Reply(503, "", "Away"), "a:8080 answered 503: Away", 503, True, 1),
        (Reply(307, location="/x"), "redirect from one to another without an end", None, False, 5),
        (Reply(307, location="http://b:PORT/"), "is no URL: http://b:PORT", None, False, 1),
    ],
)
def test_a_request_that_fails_says_why_and_whether_it_may_have_arrived(
    answer: object, told: str, status: int | None, in_doubt: bool, sent: int
) -> None:
    asked: list[Request] = []
    admin = admin_of(answers(host_of, {"*": answer}, asked), "http://a:8080/", "http://b:8080")
    with pytest.raises(RequestFailed, match=f"cannot move {BUNDLE}: ") as raised:
        admin.unload(BUNDLE, "c:8080")
    assert told in str(raised.value)
    assert (status, in_doubt, sent) == (raised.value.status, raised.value.in_doubt, len(asked))


@pytest.mark.parametrize(
    ("found", "kind", "told"),
    [
        (
            {"*": Reply(401, DENIED)},
            OperatorError,
            "not let .* list the brokers: not allowed; give",
        ),
        ({"*": Reply(403, DENIED)}, OperatorError, "credentials .* with the role of a super-user"),
        ({"*": Reply(200, "<html>")}, RequestFailed, "answered with no JSON; is it a Pulsar admin"),
        ({"a": Reply(307, location="http://b/")}, RequestFailed, "redirects to b without TLS; the"),
        (
            {"a": Reply(308, location="https://b/"), "b": NotSent("refused")},
            RequestFailed,
            "https://b, to which https://a:8080 redirects, cannot be reached: refused",
        ),
    ],
)
def test_a_question_that_fails_says_why(
    found: dict[str, object], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        admin_of(answers(host_of, found), "https://a:8080").brokers()


def test_who_may_move_a_bundle_is_named() -> None:
    with pytest.raises(OperatorError, match="super-user, or of an administrator of its tenant"):
        admin_of(lambda _: Reply(403)).unload(BUNDLE, "c:8080")


def test_the_next_url_is_asked_if_one_cannot_be_reached() -> None:
    api = answers(host_of, {"a": NotSent("refused"), "b": ["c:8080"]})
    assert ("c:8080",) == admin_of(api, "http://a:8080", "http://b:8080").brokers()


@pytest.mark.parametrize("bundle", ["../../tenants/x", "t/n/0x2_0x1"])
def test_a_name_that_is_no_bundle_is_never_sent(bundle: str) -> None:
    asked: list[Request] = []
    with pytest.raises(CallerError):
        admin_of(answers(host_of, {}, asked)).unload(bundle, "c:8080")
    assert [] == asked


@pytest.mark.parametrize(
    "url", ["pulsar://a:6650", "http://BROKER:PORT", "http://", "http://a:99999999"]
)
def test_wrong_urls_are_errors(url: str) -> None:
    with pytest.raises(CallerError, match=f"'{url}' is not the URL of an admin API"):
        PulsarAdmin([url])


def test_a_request_is_exchanged_over_the_network() -> None:
    """Without a connection it is `NotSent`. A connection that ends early is another error."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.path == "/cut":
                return
            self.send_response(307, "Elsewhere")
            self.send_header("Location", "/y")
            self.end_headers()
            self.wfile.write(f"{self.path} {self.headers['X']}".encode())

        def log_message(self, *_: object) -> None:
            pass

    exchange = exchange_by(ssl.create_default_context())
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        request = Request("POST", f"http://127.0.0.1:{server.server_port}/x?y=1", {"X": "z"}, 9, 9)
        assert Reply(307, "/x?y=1 z", "Elsewhere", "/y") == exchange(request)
        with pytest.raises(NotSent):
            exchange(request._replace(url=request.url.replace("http:", "https:")))
        with pytest.raises((ConnectionError, HTTPException)):
            exchange(request._replace(url=request.url.replace("x?y=1", "cut")))
        server.shutdown()
        thread.join()
    with pytest.raises(NotSent, match="Connection refused"):
        exchange(request)
    with pytest.raises(ValueError, match="is no http:// or https:// address"):
        exchange(request._replace(url="a:8080"))
