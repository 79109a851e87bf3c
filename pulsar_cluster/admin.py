"""Ask the admin API of a real Pulsar cluster, over HTTP.

One request changes something: `unload` moves a bundle. All others only read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from http.client import HTTPException
from itertools import pairwise
from typing import Final
from urllib.parse import parse_qs, quote, urlencode, urljoin, urlsplit

from equipoise.channel.core.errors import CallerError, OperatorError, PeerError
from equipoise.channel.core.ranges import parse_bundle
from equipoise.pulsar_cluster.credentials import (
    NOBODY,
    Credentials,
    Exchange,
    NotSent,
    Reply,
    Request,
    exchange_by,
)
from equipoise.pulsar_cluster.placement_rules import ClusterPolicies, parse_isolation
from equipoise.shedder.loads import BundleTraffic, Traffic

_API: Final = "/admin/v2"
_REDIRECTS_MAX: Final = 5
_REASON_CHARACTERS_MAX: Final = 300
_SUPER_USER: Final = "the role of a super-user"
_TENANT_ADMIN: Final = "the role of a super-user, or of an administrator of its tenant"
_BROKER_CONNECT_S: Final = 5.0
_WITHOUT_FIGURES_MAX: Final = 3
_FIGURES: Final = (
    "msgRateIn",
    "msgRateOut",
    "msgThroughputIn",
    "msgThroughputOut",
    "producerCount",
)
_SLASHES: Final = 2
"""How many a bundle's name has."""
_REDIRECTS: Final = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
_find_message: Final = re.compile(r"\nMessage: (.+)").search


class RequestFailed(PeerError):
    """A request that the cluster refused, or did not answer."""

    def __init__(
        self, *, what: str, problem: str, status: int | None = None, in_doubt: bool = False
    ) -> None:
        """`what` was to be done. `status` is the answer's, if there is one. `in_doubt`: it may have
        been carried out, or still be.
        """
        self.what = what
        self.problem = problem
        self.status = status
        self.in_doubt = in_doubt
        super().__init__(f"cannot {what}: {problem}")


class PulsarAdmin:
    """A client of the admin API. Its methods may be called by several threads.

    Each method raises `OperatorError` without permission, and `RequestFailed`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        credentials: Credentials = NOBODY,
        timeout_s: float = 30.0,
        exchange: Exchange | None = None,
    ) -> None:
        """`urls` are those of brokers or of a proxy: the first that answers is used. `exchange`
        replaces the network in tests.

        Raises `CallerError` for another URL, and `OperatorError` for a PEM file that cannot be
        used.
        """
        for url in urls:
            if not _is_url(url):
                raise CallerError(
                    f"{url!r} is not the URL of an admin API: write http://HOST:PORT or"
                    " https://HOST:PORT"
                )
        self._urls = [url.rstrip("/") for url in urls]
        self._timeout_s = timeout_s
        self.without_figures: dict[str, str] = {}
        """The brokers without figures in `bundle_loads`, and why."""
        self.implausible: dict[str, str] = {}
        """The topics whose figures in `bundle_loads` are no load, and why: those of their bundles
        are not known."""
        self._credentials = credentials
        self._cluster: str | None = None
        self._exchange = exchange_by(credentials.tls()) if exchange is None else exchange

    # --- reading ---

    def brokers(self) -> tuple[str, ...]:
        """Return the ids of the live brokers, `HOST:PORT`, sorted."""
        return tuple(
            sorted(_texts(self._get("/brokers", what="list the brokers", right=_SUPER_USER)))
        )

    def leader(self) -> str | None:
        """Return the id of the leading broker; None while there is none."""
        found = self._get(
            "/brokers/leaderBroker", what="ask for the leader", right=_SUPER_USER, absent=True
        )
        broker = found.get("brokerId") if isinstance(found, Mapping) else None
        return broker if isinstance(broker, str) else None

    def settings(self, broker: str | None = None) -> Mapping[str, str]:
        """Return the settings of a broker as it runs. None: the one that answers."""
        what = f"read the settings of {broker or 'a broker'}"
        return _settings(
            self._get("/brokers/configuration/runtime", what=what, right=_SUPER_USER, at=broker)
        )

    def policies(self, namespaces: Sequence[str], settings: Mapping[str, str]) -> ClusterPolicies:
        """Return the policies about placement. `namespaces` are asked for their anti-affinity
        groups; `settings` are those of a broker.

        Raises `CallerError`.
        """
        cluster = quote(settings.get("clusterName", ""), safe="")
        path = f"/clusters/{cluster}/namespaceIsolationPolicies"
        isolations = _mapping(
            self._get(path, what="read the isolation policies", right=_SUPER_USER, absent=True)
        )
        domains: dict[str, str] = {}
        if settings.get("failureDomainsEnabled") == "true":
            path = f"/clusters/{cluster}/failureDomains"
            found = _mapping(
                self._get(path, what="read the failure domains", right=_SUPER_USER, absent=True)
            )
            for name, domain in sorted(found.items()):
                for broker in _texts(
                    domain.get("brokers") if isinstance(domain, Mapping) else None
                ):
                    domains.setdefault(broker, name)
        groups = {
            namespace: group
            for namespace in namespaces
            if (group := self._group_of(namespace)) is not None
        }
        topics_max = settings.get("loadBalancerBrokerMaxTopics", "")
        return ClusterPolicies(
            isolations=tuple(
                parse_isolation(name, document) for name, document in isolations.items()
            ),
            groups=groups,
            domains=domains,
            topics_max=int(topics_max) if topics_max.isdecimal() else ClusterPolicies().topics_max,
        )

    def topics_of(self, bundle: str) -> tuple[str, ...]:
        """Return the persistent topics of a bundle, by full name."""
        namespace, _, key_range = bundle.rpartition("/")
        what = f"list the topics of {bundle}"
        path = f"/persistent/{_path(namespace)}"
        return tuple(
            sorted(
                _texts(
                    self._get(
                        path, {"bundle": key_range}, what=what, right=_TENANT_ADMIN, absent=True
                    )
                )
            )
        )

    def topic_stats(self, topic: str) -> Mapping[str, object] | None:
        """Return the figures of a topic as its broker knows them; None if there is no such topic
        any more.
        """
        domain, _, name = topic.partition("://")
        path = f"/{domain}/{_path(name)}/stats"
        found = self._get(
            path, what=f"read the figures of {topic}", right=_TENANT_ADMIN, absent=True
        )
        return found if isinstance(found, Mapping) else None

    def bundle_loads(self, broker: str, *, settled_ms: int) -> Mapping[str, BundleTraffic | None]:
        """Return the load of each bundle with topics that a broker serves, from their figures,
        which the broker renews once a minute.

        None: it has no traffic, and a client that connected after `settled_ms` (Unix time), or at
        an unknown time. So its figures may be older than its clients. Or a figure of one of its
        topics is no load. A broker that does not answer has none at all, and is in
        `without_figures`: its own address may be hidden by a proxy. After 3 of them, no further one
        is asked.
        """
        found: dict[str, BundleTraffic | None] = {}
        what = f"read the figures of the topics of {broker}"
        if len(self.without_figures) >= _WITHOUT_FIGURES_MAX:
            self.without_figures[broker] = (
                f"it was not asked, after {_WITHOUT_FIGURES_MAX} brokers had not answered"
            )
            return {}
        try:
            namespaces = _mapping(
                self._get("/broker-stats/topics", what=what, right=_SUPER_USER, at=broker)
            )
        except RequestFailed as error:
            self.without_figures[broker] = error.problem
            return {}
        for namespace, bundles in namespaces.items():
            for key_range, domains in _mapping(bundles).items():
                named = {
                    name: _mapping(topic)
                    for domain in _mapping(domains).values()
                    for name, topic in _mapping(domain).items()
                }
                topics = list(named.values())
                absurd = {
                    name: fault
                    for name, topic in named.items()
                    if (fault := _fault_in(topic)) is not None
                }
                self.implausible |= absurd
                load = _load_of(f"{namespace}/{key_range}", topics)
                has_figures = (
                    load.traffic.messages_per_second > 0
                    or _settled_sessions(topics, settled_ms) >= load.producers + load.consumers
                )
                found[load.bundle] = load if has_figures and not absurd else None
        return found

    def namespace_bundles(self, namespaces: Iterable[str]) -> Mapping[str, frozenset[str] | None]:
        """Return the bundles that each namespace has by its boundaries; None for one that does not
        exist. One without any is left out.
        """
        found: dict[str, frozenset[str] | None] = {}
        for name in sorted(set(namespaces)):
            answer = self._get(
                f"/namespaces/{_path(name)}/bundles",
                what=f"list the bundles of {name}",
                right=_TENANT_ADMIN,
                absent=True,
            )
            edges = _texts(_mapping(answer).get("boundaries"))
            if answer is None or edges:
                found[name] = (
                    None
                    if answer is None
                    else frozenset(f"{name}/{low}_{high}" for low, high in pairwise(edges))
                )
        return found

    def owned_by(self, broker: str) -> frozenset[str]:
        """Return the bundles of namespaces that a broker owns, as it says itself."""
        if self._cluster is None:
            self._cluster = self.settings().get("clusterName", "")
        path = f"/brokers/{quote(self._cluster, safe='')}/{broker}/ownedNamespaces"
        what = f"list the bundles of {broker}"
        try:
            owned = self._get(path, what=what, right=_SUPER_USER, limit_s=_BROKER_CONNECT_S)
        except RequestFailed as error:
            if error.status is not None:
                raise
            # Redirects lead to the port without TLS.
            owned = self._get(
                path, what=what, right=_SUPER_USER, at=broker, limit_s=_BROKER_CONNECT_S
            )
        # The others are namespaces of the broker itself, which checks its own health there.
        return frozenset(
            bundle
            for bundle in _mapping(owned)
            if ":" not in bundle and bundle.count("/") == _SLASHES
        )

    def owned_bundles(self) -> Mapping[str, frozenset[str]]:
        """Return the bundles that each live broker owns. One that cannot be reached is left out;
        after 3 of them, all others are, too.
        """
        found: dict[str, frozenset[str]] = {}
        silent = 0
        for broker in self.brokers():
            if silent < _WITHOUT_FIGURES_MAX:
                try:
                    found[broker] = self.owned_by(broker)
                except RequestFailed:
                    silent += 1
        return found

    def _group_of(self, namespace: str) -> str | None:
        what = f"read the anti-affinity group of {namespace}"
        group = self._get(
            f"/namespaces/{_path(namespace)}/antiAffinity",
            what=what,
            right=_TENANT_ADMIN,
            absent=True,
        )
        # Pulsar compares the names of groups without regard to case.
        return group.lower() if isinstance(group, str) and group else None

    # --- changing ---

    def unload(self, bundle: str, destination: str) -> None:
        """Have the owner of a bundle move it to the broker `destination`. Returns once it has
        moved.
        """
        parse_bundle(bundle)
        self._ask(
            "PUT",
            f"/namespaces/{_path(bundle)}/unload",
            {"destinationBroker": destination},
            what=f"move {bundle}",
            right=_TENANT_ADMIN,
        )

    # --- HTTP ---

    def _get(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        what: str,
        right: str,
        absent: bool = False,
        at: str | None = None,
        limit_s: float = math.inf,
    ) -> object:
        """Return the decoded answer; None if it is empty, or with `absent` if there is nothing at
        the path.
        """
        text = self._ask(
            "GET", path, params, what=what, right=right, absent=absent, at=at, limit_s=limit_s
        )
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            where = at or urlsplit(self._urls[0]).netloc
            raise RequestFailed(
                what=what, problem=f"{where} answered with no JSON; is it a Pulsar admin API?"
            ) from error

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        what: str,
        right: str,
        absent: bool = False,
        at: str | None = None,
        limit_s: float = math.inf,
    ) -> str:
        """Return the answer of the broker `at`, or of the first URL that can be reached. No request
        that may have arrived is sent again.
        """
        problem = "no URL of an admin API was given"
        timeout_s = min(limit_s, self._timeout_s)
        request = Request(
            method,
            f"{_API}{path}",
            # Brokers write the name of the program into their logs of requests.
            {"User-Agent": "equipoise", **self._credentials.header()},
            timeout_s if at is None else min(_BROKER_CONNECT_S, timeout_s),
            timeout_s,
        )
        for url in self._urls if at is None else self._urls_of(at):
            try:
                base, reply = self._followed(url, request, params or {}, what)
            except NotSent as error:
                problem = f"{url} cannot be reached: {error}"
            except (OSError, HTTPException) as error:
                kind = (
                    "did not answer in time"
                    if isinstance(error, TimeoutError)
                    else f"broke the connection: {error}"
                )
                raise RequestFailed(
                    what=what, problem=f"{url} {kind}", in_doubt=method != "GET"
                ) from error
            except ValueError as error:
                raise RequestFailed(
                    what=what, problem=f"{url}, or where it redirects to, is no URL: {error}"
                ) from error
            else:
                if absent and reply.status == HTTPStatus.NOT_FOUND:
                    return ""
                _check(reply, method, base, what, right)
                return reply.text
        raise RequestFailed(what=what, problem=f"{problem}; check --admin, or try again later")

    def _urls_of(self, broker: str) -> Sequence[str]:
        """Return where a broker may be reached. Its id has the port without TLS if it has both; all
        brokers then have one port with TLS.
        """
        url = urlsplit(self._urls[0])
        of_id = f"{url.scheme}://{broker}"
        return (
            [of_id]
            if url.scheme == "http"
            else [of_id, f"https://{broker.rpartition(':')[0]}:{url.port or 443}"]
        )

    def _followed(
        self, url: str, request: Request, params: Mapping[str, str], what: str
    ) -> tuple[str, Reply]:
        """Return the broker that a redirect names at last, and its reply: the owner of the bundle,
        for most requests.

        Only the broker and the parameter `authoritative` are taken from a redirect. So it cannot
        turn one request into another. The broker gets the token, too.
        """
        base, query = url, dict(params)
        for _ in range(_REDIRECTS_MAX):
            sent = f"{base}{request.url}" + (f"?{urlencode(query)}" if query else "")
            try:
                reply = self._exchange(request._replace(url=sent))
            except NotSent as error:
                if base == url:
                    raise
                raise RequestFailed(
                    what=what,
                    problem=f"{base}, to which {url} redirects, cannot be reached: {error}",
                ) from error
            if reply.status not in _REDIRECTS:
                return base, reply
            target = urlsplit(urljoin(sent, reply.location))
            if base.startswith("https:") and target.scheme != "https":
                raise RequestFailed(
                    what=what,
                    problem=(
                        f"{base} redirects to {target.hostname} without TLS; the token would be"
                        " sent in the clear"
                    ),
                )
            base = f"{target.scheme}://{target.netloc}"
            if not _is_url(base):
                raise ValueError(base)
            query |= {
                name: values[0]
                for name, values in parse_qs(target.query).items()
                if name == "authoritative"
            }
        raise RequestFailed(
            what=what,
            problem=(
                f"the brokers redirect from one to another without an end, the last to {base}; try"
                " again later"
            ),
        )


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def _check(reply: Reply, method: str, base: str, what: str, right: str) -> None:
    """Raise the error of a reply that is none of success."""
    if reply.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    reason = _reason(reply)
    if reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise OperatorError(
            f"the cluster does not let this client {what}: {reason}; give it credentials"
            f" (--token-file, --client-conf) with {right}"
        )
    raise RequestFailed(
        what=what,
        problem=f"{urlsplit(base).netloc} answered {reply.status}: {reason}",
        status=reply.status,
        # A broker that fails may have begun.
        in_doubt=reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR and method != "GET",
    )


def _reason(reply: Reply) -> str:
    """Return the message in a reply on one line, without the stack trace that Pulsar adds."""
    try:
        document = json.loads(reply.text)
    except ValueError:
        text = reply.text
    else:
        text = str(_mapping(document).get("reason") or "")
    message = _find_message(text)
    lines = (message[1] if message is not None else text).strip().splitlines()
    return lines[0][:_REASON_CHARACTERS_MAX] if lines else reply.reason


def _path(name: str) -> str:
    return "/".join(quote(part, safe="") for part in name.split("/"))


def _fault_in(topic: Mapping[str, object]) -> str | None:
    """Return what figure of a topic is no load; None if all are. One that is missing is 0."""
    for field in _FIGURES:
        figure = topic.get(field, 0)
        if (
            isinstance(figure, bool)
            or not isinstance(figure, int | float)
            or not math.isfinite(figure)
            or figure < 0
        ):
            return f"{field}={figure!r:.40}"
    return None


def _load_of(bundle: str, topics: Sequence[Mapping[str, object]]) -> BundleTraffic:
    def total(field: str) -> float:
        return sum(float(str(topic.get(field, 0))) for topic in topics if _fault_in(topic) is None)

    traffic = Traffic(
        bytes_in_per_second=total("msgThroughputIn"),
        bytes_out_per_second=total("msgThroughputOut"),
        messages_in_per_second=total("msgRateIn"),
        messages_out_per_second=total("msgRateOut"),
    )
    consumers = sum(len(_consumers_of(topic)) for topic in topics)
    return BundleTraffic(
        bundle=bundle,
        traffic=traffic,
        topics=len(topics),
        producers=int(total("producerCount")),
        consumers=consumers,
    )


def _consumers_of(topic: Mapping[str, object]) -> list[object]:
    lists = [
        _mapping(subscription).get("consumers")
        for subscription in _mapping(topic.get("subscriptions")).values()
    ]
    return [
        consumer for consumers in lists if isinstance(consumers, list) for consumer in consumers
    ]


def _settled_sessions(topics: Sequence[Mapping[str, object]], settled_ms: int) -> int:
    """Return how many producers and consumers of topics connected before `settled_ms`. Some brokers
    name no producers.
    """
    publishers = [topic.get("publishers") for topic in topics]
    clients = [client for each in publishers if isinstance(each, list) for client in each]
    clients += [client for topic in topics for client in _consumers_of(topic)]
    return sum(_connected_ms(client) < settled_ms for client in clients)


def _connected_ms(client: object) -> float:
    """Return when a client connected (Unix time), or infinity if its figures do not say."""
    try:
        return (
            datetime.fromisoformat(str(_mapping(client).get("connectedSince"))).timestamp() * 1_000
        )
    except ValueError:
        return math.inf


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _settings(value: object) -> dict[str, str]:
    return {name: str(setting) for name, setting in _mapping(value).items()}
