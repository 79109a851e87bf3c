"""Ask a broker over HTTP for whatever its OpenAPI document allows, and much that it does not: every
answer is documented.

schemathesis takes the operations from the document, so a new path is tested as soon as it is there.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode, checks, openapi
from schemathesis.core.result import Ok

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.log.open_log import open_log
from equipoise.channel.system.loop_thread import InThread
from tests.docs.openapi import document
from tests.unit.pulsar.wire_client import NAMESPACE, PATIENCE_MS, TOPIC, Brokers, brokers

pytestmark = pytest.mark.integration


def every_operation() -> Iterator[tuple[str, APIOperation[Any, Any, Any, Any]]]:
    """All operations of the document, by method and path."""
    for found in openapi.from_dict(document()).get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        yield f"{operation.method.upper()} {operation.path}", operation


ENDING: Final = frozenset({"POST /admin/v2/brokers/drain"})
"""The operations that end the broker."""

EVERY: Final = dict(every_operation())
OPERATIONS: Final = {label: operation for label, operation in EVERY.items() if label not in ENDING}
EXAMPLES: Final = 8
ANSWER_S: Final = 30.0

TENANT, _, LOCAL = NAMESPACE.partition("/")
WHOLE: Final = "0x00000000_0xffffffff"
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "bundle": (WHOLE, "0x00000000_0x80000000", "0x80000000_0xffffffff", "LARGEST"),
    "cluster": ("equipoise",),
    "domain": ("non-persistent", "non-persistent", "persistent"),
    "key": ("loadBalancerEnabled", "loadBalancerBrokerThresholdShedderPercentage"),
    "name": ("one",),
    "namespace": (LOCAL,),
    "tenant": (TENANT,),
    "topic": ("orders", "orders-partition-0", "parted"),
    "value": ("true", "10"),
    "version": ("0", "9" * 19),
}
"""Values of path parameters behind which there is something, or often is."""

HUGE: Final = "x" * 2_100
WAITS: Final = {"timeout_ms": "1"}
"""Values of parameters that would only make the test wait."""

ANSWERED: Final = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.just(HUGE),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


class Running:
    """A broker with Pulsar's service, on a loop in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log_url = f"memory:{uuid.uuid4()}"
        self._running: Brokers | None = None
        self.thread = InThread(
            self._brokers(), what="the broker", start_ms=PATIENCE_MS, stop_ms=PATIENCE_MS
        )

    @asynccontextmanager
    async def _brokers(self) -> AsyncIterator[None]:
        # With this lease no renewal comes between a request and the look at what it changed.
        config = {"lease_ms": 600_000, "renew_ms": 200_000, "grace_ms": 30_000}
        async with brokers(
            self._folder, bundles=2, config=config, log_url=self._log_url
        ) as self._running:
            yield

    @property
    def running(self) -> Brokers:
        """The brokers, of which there is one."""
        assert self._running is not None, "it runs"
        return self._running

    @property
    def url(self) -> str:
        """The broker's HTTP address."""
        return self.running.members[0].http_url

    def state(self, *, is_next: bool) -> object:
        """Return what the channel holds, once the broker has read all of it.

        `is_next`: before the next request. Wait then until nothing moves any more, and restore what
        earlier requests removed.
        """
        return self.thread.run(
            self._state(is_next=is_next), timeout_ms=PATIENCE_MS, what="the broker's view"
        )

    async def _state(self, *, is_next: bool) -> object:
        worker = self.running.members[0].worker
        if is_next:
            await self.running.settled()
            if NAMESPACE not in worker.view.namespaces:
                await worker.request(
                    CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(2)),
                    timeout_ms=PATIENCE_MS,
                )
                await self.running.settled()
            await self._use_topic()
        with closing(open_log(self._log_url)) as log:
            await worker.reached(log.end(), timeout_ms=PATIENCE_MS)
        view = worker.view
        return (
            dict(view.namespaces),
            dict(view.bundles),
            dict(view.policies),
            {name: broker.status for name, broker in view.brokers.items()},
        )

    async def _use_topic(self) -> None:
        """Have a client use the topic, unless one does. Clients of these tests do not come back
        after a move.
        """
        member = self.running.members[0]
        if TOPIC not in member.service.hosting.topics:
            client = await member.client()
            await client.consumer(1)
            await client.producer(1)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder))
        with running.thread:
            yield running


def test_what_ends_the_broker_is_left_out() -> None:
    """And nothing else: those paths exist."""
    assert ENDING == EVERY.keys() - OPERATIONS.keys()


# Those would be another path.
names = st.just(HUGE) | st.text(min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)


@st.composite
def cases(draw: st.DrawFn, label: str) -> Case[Any]:
    """Draw a request. Half of them name only what may exist, the others one thing that does not.
    Half of the bodies are as documented.
    """
    case = draw(OPERATIONS[label].as_strategy(GenerationMode.POSITIVE))
    in_path = tuple(case.path_parameters)
    unknown = draw(st.sampled_from((*in_path, *(None for _ in in_path), None)))
    for name in in_path:
        value = draw(
            names if name == unknown or name not in KNOWN else st.sampled_from(KNOWN[name])
        )
        case.path_parameters[name] = quote(value, safe="")
    queried = {parameter.name for parameter in case.operation.query}
    if draw(st.booleans()) and queried:
        case.query |= draw(st.dictionaries(st.sampled_from(sorted(queried)), names, min_size=1))
    case.query |= {name: value for name, value in WAITS.items() if name in case.query}
    if case.operation.body and draw(st.booleans()):
        case.body = draw(values)
    return case


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_documented(running: Running, label: str) -> None:
    """A refusal has a reason, and changes nothing."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(label))
    def check(case: Case[Any]) -> None:
        before = running.state(is_next=True)
        response = case.call(base_url=running.url, timeout=ANSWER_S, allow_redirects=False)
        case.validate_response(response, checks=ANSWERED)
        if HTTPStatus.BAD_REQUEST <= response.status_code:
            assert {"reason", "error"} == set(response.json())
            assert before == running.state(is_next=False), (
                "a refused request has changed the channel"
            )

    check()
