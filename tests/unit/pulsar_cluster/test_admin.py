"""The admin API is asked over HTTP. Each way in which it fails is a sentence, and a redirect only
changes the broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.pulsar_cluster.admin import PulsarAdmin, RequestFailed
from equipoise.pulsar_cluster.credentials import NOBODY, with_files

BUNDLE = "public/default/0x00000000_0x40000000"
UNLOAD = "/admin/v2/namespaces/public/default/0x00000000_0x40000000/unload"
SETTLED_MS = 1_795_870_200_000
BEFORE, AFTER = ("2026-11-28T12:49:59.59259189Z", "2026-11-28T12:50:01.073532374Z")
Answer = Callable[[httpx.Request], httpx.Response]


def admin(
    answer: Answer, *, urls: tuple[str, ...] = ("http://a:8080/",), token_file: Path | None = None
) -> PulsarAdmin:
    return PulsarAdmin(
        urls,
        credentials=with_files(NOBODY, token_file, None),
        transport=httpx.MockTransport(answer),
    )


def always(status: int, body: object = None) -> Answer:
    return lambda request: (
        httpx.Response(status, json=body) if body is not None else httpx.Response(status)
    )


def by_path(bodies: dict[str, object]) -> Answer:
    def answer(request: httpx.Request) -> httpx.Response:
        body = bodies.get(request.url.path.removeprefix("/admin/v2"))
        return (
            httpx.Response(404, json={"reason": "none"})
            if body is None
            else httpx.Response(200, json=body)
        )

    return answer


def test_brokers_and_their_leader_are_listed() -> None:
    found = admin(
        by_path(
            {
                "/brokers": ["b:8080", "a:8080"],
                "/brokers/leaderBroker": {"serviceUrl": "http://b:8080", "brokerId": "b:8080"},
            }
        )
    )
    assert (("a:8080", "b:8080"), "b:8080") == (found.brokers(), found.leader())
    assert admin(by_path({})).leader() is None


def test_policies_are_read_where_they_are_set() -> None:
    """Names of groups are compared without regard to case. Domains count only if the cluster uses
    them.
    """
    bodies: dict[str, object] = {
        "/clusters/east/namespaceIsolationPolicies": {
            "bank": {"namespaces": ["bank/.*"], "primary": ["a"], "secondary": []}
        },
        "/clusters/east/failureDomains": {
            "x": {"brokers": ["a:8080"]},
            "y": {"brokers": ["a:8080", "b:8080"]},
        },
        "/namespaces/t/one/antiAffinity": "Group",
    }
    settings = {
        "clusterName": "east",
        "failureDomainsEnabled": "true",
        "loadBalancerBrokerMaxTopics": "7",
    }
    found = admin(by_path(bodies)).policies(["t/one", "t/two"], settings)
    assert ["bank"] == [policy.name for policy in found.isolations]
    assert ({"t/one": "group"}, {"a:8080": "x", "b:8080": "y"}, 7) == (
        found.groups,
        found.domains,
        found.topics_max,
    )
    assert {} == admin(by_path(bodies)).policies([], {"clusterName": "east"}).domains


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
    }
    topic |= {"subscriptions": {"s": {"consumers": [{}, {}]}}}  # type: ignore[dict-item]
    new, idle = (
        {"msgRateIn": 0.0, "producerCount": 1, "publishers": [{"connectedSince": since}]}
        for since in (AFTER, BEFORE)
    )
    nameless = {"msgRateIn": 0.0, "producerCount": 1}
    bundles = {
        "0x0_0x1": {"x": topic, "y": topic},
        "0x1_0x2": {"z": new},
        "0x2_0x3": {},
        "0x3_0x4": {"z": idle},
        "0x4_0x5": {"z": nameless},
    }
    stats = {"t/n": {key_range: {"persistent": topics} for key_range, topics in bundles.items()}}
    found = admin(by_path({"/broker-stats/topics": stats})).bundle_loads(
        "b:8080", settled_ms=SETTLED_MS
    )
    load = found["t/n/0x0_0x1"]
    assert load is not None
    assert (50.0, 10_000.0, 2, 4, 4) == (
        load.traffic.messages_per_second,
        load.traffic.bytes_per_second,
        load.topics,
        load.producers,
        load.consumers,
    )
    assert found["t/n/0x1_0x2"] is None
    assert found["t/n/0x2_0x3"] is not None
    assert (0.0, 1) == (
        (idle_load := found["t/n/0x3_0x4"])
        and (idle_load.traffic.messages_per_second, idle_load.producers)
    )
    assert found["t/n/0x4_0x5"] is None


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
    asked = admin(by_path({"/broker-stats/topics": stats}))
    found = asked.bundle_loads("b:8080", settled_ms=SETTLED_MS)
    assert found["t/n/0x0_0x1"] is None
    assert (load := found["t/n/0x1_0x2"]) is not None
    assert 20.0 == load.traffic.messages_in_per_second
    assert {"y": f"msgRateIn={absurd!r}"} == asked.implausible


def test_a_broker_whose_own_address_cannot_be_reached_has_no_figures() -> None:
    """A missing right is an error as ever. After 3 such brokers no further one is asked: a proxy
    hides them all.
    """
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.host))
        if request.url.host == "d":
            return httpx.Response(403)
        raise httpx.ConnectTimeout("filtered")

    found = admin(answer)
    with pytest.raises(OperatorError):
        found.bundle_loads("d:8080", settled_ms=SETTLED_MS)
    for broker in ("a:8080", "b:8080", "c:8080", "e:8080"):
        assert {} == found.bundle_loads(broker, settled_ms=SETTLED_MS)
    assert ["d", "a", "b", "c"] == asked
    assert ["a:8080", "b:8080", "c:8080", "e:8080"] == list(found.without_figures)
    assert "http://a:8080 cannot be reached: filtered" in found.without_figures["a:8080"]


def test_with_tls_a_broker_is_asked_at_the_port_of_the_given_url_too() -> None:
    """The id of a broker with both ports has the one without TLS."""
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.copy_with(path="/")))
        if request.url.port == 8080:
            raise httpx.ConnectError("wrong version number")
        return httpx.Response(200, json={})

    found = admin(answer, urls=("https://a:8443",))
    assert {} == found.bundle_loads("b:8080", settled_ms=SETTLED_MS)
    assert ["https://b:8080/", "https://b:8443/"] == asked
    assert {} == found.without_figures


def test_the_latency_of_publishes_is_found_among_the_metrics() -> None:
    lines = [
        f'pulsar_broker_publish_latency{{cluster="x",quantile="{quantile}"}} {value}'
        for quantile, value in (("0.5", 1), ("0.99", 39.2))
    ]
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, text="\n".join(lines))

    assert 39.2 == admin(answer).publish_latency_ms("b:8080")
    assert ["http://b:8080/metrics/"] == asked
    assert admin(lambda _: httpx.Response(200, text="")).publish_latency_ms("b:8080") is None


def test_topics_and_their_figures_are_read() -> None:
    found = admin(
        by_path(
            {
                "/persistent/t/n": ["persistent://t/n/x"],
                "/persistent/t/n/x/stats": {"msgInCounter": 7},
            }
        )
    )
    assert ("persistent://t/n/x",) == found.topics_of("t/n/0x0_0x1")
    assert {"msgInCounter": 7} == found.topic_stats("persistent://t/n/x")
    assert found.topic_stats("persistent://t/n/gone") is None


def test_an_unload_goes_to_the_owner_with_the_token(tmp_path: Path) -> None:
    """A redirect that names another destination, or another path, is not believed in that."""
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, str(request.url), request.headers["Authorization"]))
        location = (
            "http://b:8080/admin/v2/brokers/shutdown?authoritative=true&destinationBroker=evil:1"
        )
        return (
            httpx.Response(307, headers={"Location": location})
            if request.url.host == "a"
            else httpx.Response(204)
        )

    admin(answer, token_file=token_file).unload(BUNDLE, "c:8080")
    assert [
        ("PUT", f"http://a:8080{UNLOAD}?destinationBroker=c%3A8080", "Bearer secret"),
        (
            "PUT",
            f"http://b:8080{UNLOAD}?destinationBroker=c%3A8080&authoritative=true",
            "Bearer secret",
        ),
    ] == asked


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("https://a:8080/", "redirect from one to another without an end"),
        ("http://b:8080/", "redirects to b without TLS"),
    ],
)
def test_a_redirect_without_an_end_or_without_tls_is_refused(location: str, told: str) -> None:
    found = admin(
        lambda _: httpx.Response(307, headers={"Location": location}), urls=("https://a:8080",)
    )
    with pytest.raises(RequestFailed, match=told):
        found.unload(BUNDLE, "c:8080")


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_right_is_named(status: int) -> None:
    found = admin(always(status, {"reason": "not allowed"}))
    wanted = (
        f"the cluster does not let this client move {BUNDLE}: not allowed; give it credentials .*"
        " an administrator of its tenant"
    )
    with pytest.raises(OperatorError, match=wanted):
        found.unload(BUNDLE, "c:8080")
    with pytest.raises(
        OperatorError,
        match=r"list the brokers: not allowed; give it credentials .* the role of a super-user",
    ):
        found.brokers()


@pytest.mark.parametrize(
    ("status", "in_doubt"), [(404, False), (412, False), (500, True), (503, True)]
)
def test_a_refusal_has_its_reason_and_a_failing_broker_may_have_begun(
    status: int, in_doubt: bool
) -> None:
    reason = (
        "\n --- An unexpected error occurred in the server ---\n\nMessage: it is there"
        " already\n\nStacktrace:\n\njava.lang"
    )
    with pytest.raises(RequestFailed) as raised:
        admin(always(status, {"reason": reason})).unload(BUNDLE, "c:8080")
    assert f"cannot move {BUNDLE}: a:8080 answered {status}: it is there already" == str(
        raised.value
    )
    assert (status, in_doubt) == (raised.value.status, raised.value.in_doubt)


def test_the_next_url_is_asked_if_one_cannot_be_reached() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "a":
            raise httpx.ConnectError("refused")
        return httpx.Response(204)

    admin(answer, urls=("http://a:8080", "http://b:8080")).unload(BUNDLE, "c:8080")
    with pytest.raises(
        RequestFailed, match="http://a:8080 cannot be reached: refused; check --admin"
    ) as raised:
        admin(answer).unload(BUNDLE, "c:8080")
    assert not raised.value.in_doubt


def test_an_owner_that_cannot_be_reached_is_named() -> None:
    """No other broker is asked: all would redirect there."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "c":
            raise httpx.ConnectError("refused")
        return httpx.Response(307, headers={"Location": "http://c:8080/"})

    with pytest.raises(
        RequestFailed,
        match="http://c:8080, to which http://a:8080 redirects, cannot be reached: refused",
    ) as raised:
        admin(answer, urls=("http://a:8080", "http://b:8080")).unload(BUNDLE, "c:8080")
    assert not raised.value.in_doubt


@pytest.mark.parametrize("error", [httpx.ReadTimeout("slow"), httpx.ReadError("reset")])
def test_a_request_that_may_have_arrived_is_not_sent_again(error: httpx.TransportError) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise error

    with pytest.raises(RequestFailed) as raised:
        admin(answer, urls=("http://a:8080", "http://b:8080")).unload(BUNDLE, "c:8080")
    assert raised.value.in_doubt
    assert 1 == len(asked)


def test_a_page_is_no_answer() -> None:
    with pytest.raises(RequestFailed, match="answered with no JSON; is it a Pulsar admin API"):
        admin(lambda _: httpx.Response(200, text="<html>")).brokers()


def test_dynamic_settings_are_changed_and_removed() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, json.loads(request.content or b"null")))
        return httpx.Response(204)

    found = admin(answer)
    found.set_dynamic("x", "a/b")
    found.delete_dynamic("x")
    assert [
        ("POST", "/admin/v2/brokers/configuration/x/a/b", None),
        ("DELETE", "/admin/v2/brokers/configuration/x", None),
    ] == asked


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.unload("../../tenants/x", "c:8080"),
        lambda admin: admin.unload("t/n/0x2_0x1", "c:8080"),
    ],
)
def test_a_name_that_is_no_bundle_is_never_sent(call: Callable[[PulsarAdmin], None]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    with pytest.raises(CallerError):
        call(admin(answer))


def test_wrong_urls_are_errors() -> None:
    with pytest.raises(CallerError, match="'pulsar://a:6650' is not the URL of an admin API"):
        PulsarAdmin(["pulsar://a:6650"])
    for url in ("http://BROKER:PORT", "http://", "http://a:99999999"):
        with pytest.raises(CallerError, match="is not the URL of an admin API"):
            PulsarAdmin([url])


def test_a_redirect_to_what_is_no_url_is_an_error() -> None:
    found = admin(lambda _: httpx.Response(307, headers={"Location": "http://b:PORT/"}))
    with pytest.raises(RequestFailed, match="Invalid port"):
        found.brokers()
