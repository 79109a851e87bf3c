"""Every example with two namespaces on the same brokers: no answered write is lost, whichever
bundles move, split or merge.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response
from hypothesis import example, given, settings
from hypothesis import strategies as st

import equipoise.examples
from equipoise import Cluster, Service
from equipoise.examples.counter import Counter
from equipoise.examples.counter_store import CounterStore
from equipoise.examples.files import Files
from equipoise.examples.sessions import Sessions
from tests.docs.code_blocks import BLOCKS
from tests.examples.test_tickets import Tickets
from tests.visits import Visits

BROKERS: Final = ("a", "b")
KEYS: Final = ("0", "1", "2", "3")  # Both halves of the hash space have some.
NAMESPACES: Final = ("web/pages", "web_pages/pages", "web/pages_pages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """How to run one example. `write` writes to a key at its owner, and returns how many writes to
    the key the service then has.

    `serves`: the namespaces that it takes calls for. Its brokers serve the bundles of all.
    """

    make: Callable[[Path, ExitStack], Service]
    write: Callable[[Cluster[Any], Any, str, str], int]
    serves: tuple[str, ...] = NAMESPACES
    splits: bool = True


def answer_of(cluster: Cluster[Any], handler: Callable[..., Any], **match: str) -> dict[str, Any]:
    response: Response = cluster.call(handler(make_mocked_request("POST", "/", match_info=match)))
    assert response.status == 200
    assert isinstance(response.text, str)
    document: dict[str, Any] = json.loads(response.text)
    return document


def visit(cluster: Cluster[Any], service: Visits, namespace: str, key: str) -> int:
    with cluster.ownership(namespace, key).begin(key):
        return service.visit(key)


def sell(cluster: Cluster[Any], service: Tickets, namespace: str, key: str) -> int:
    return cluster.call(service.sell(cluster.ownership(namespace, key), key))


def count(cluster: Cluster[Any], service: Counter, namespace: str, key: str) -> int:
    tenant, _, local = namespace.partition("/")
    value = answer_of(cluster, service.increment, tenant=tenant, namespace=local, key=key)["value"]
    assert isinstance(value, int)
    return value


def say(cluster: Cluster[Any], service: Sessions, namespace: str, key: str) -> int:
    ownership = cluster.ownership(namespace, key)
    session = service.session(ownership, key)
    assert service.say(ownership, key, ("ann", len(session.messages) + 1, "text"))
    return len(session.messages)


def append(cluster: Cluster[Any], service: Files, namespace: str, key: str) -> int:
    ownership = cluster.ownership(namespace, key)
    service.append(ownership, key, namespace)
    lines = service.path(ownership.bundle.name).read_text().splitlines()
    assert all(line.endswith(f" {namespace}") for line in lines)
    return lines.count(f"{key} {namespace}")


def made_counter(folder: Path, ending: ExitStack) -> Counter:
    store = CounterStore(folder / "counter.db")
    ending.callback(store.close)
    return Counter(store)


def made_files(folder: Path, _ending: ExitStack) -> Files:
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    return Files(own)


EXAMPLES: Final = {
    Counter: Example(make=made_counter, write=count),
    Files: Example(make=made_files, write=append, splits=False),
    Sessions: Example(make=lambda *_: Sessions(), write=say),
    Tickets: Example(make=lambda *_: Tickets(), write=sell, serves=NAMESPACES[:1]),
    Visits: Example(make=lambda *_: Visits(), write=visit, serves=NAMESPACES[:1]),
}


def services_of_examples() -> Iterator[type[Service]]:
    """Yield the services that the modules of examples define."""
    for module in pkgutil.iter_modules(equipoise.examples.__path__, "equipoise.examples."):
        loaded = importlib.import_module(module.name)
        yield from (
            each
            for each in vars(loaded).values()
            if inspect.isclass(each)
            and issubclass(each, Service)
            and each.__module__ == module.name
        )


def test_every_example_is_tried() -> None:
    """No page shows one without a file."""
    assert set(services_of_examples()) <= EXAMPLES.keys()
    assert [] == [block.place for block in BLOCKS if "(Service)" in block.text and not block.file]


Step = tuple[str, str, str]
STEPS: Final = st.tuples(
    st.sampled_from(("write", "write", "move", "split", "merge")),
    st.sampled_from(NAMESPACES),
    st.sampled_from(KEYS),
)


def make_step(cluster: Cluster[Any], step: str, namespace: str, key: str) -> None:
    """Move, split or merge the bundle of a key."""
    bundle, bundles = cluster.bundle(namespace, key), cluster.bundles(namespace)
    if step == "move":
        cluster.give(bundle, next(broker for broker in BROKERS if broker != cluster.owner(bundle)))
    elif step == "split":
        cluster.split(bundle)
    elif bundle != bundles[-1]:
        right, owner = bundles[bundles.index(bundle) + 1], cluster.owner(bundle)
        assert owner is not None
        cluster.give(right, owner)
        cluster.merge(bundle)


@pytest.mark.parametrize("service", EXAMPLES, ids=lambda service: service.__name__)
@settings(max_examples=12)
@given(steps=st.lists(STEPS, max_size=16))
@example(
    steps=[("write", NAMESPACES[0], "0")] * 5
    + [("move", namespace, "0") for namespace in NAMESPACES[1:]]
)
@example(
    steps=[("write", namespace, "0") for namespace in NAMESPACES] + [("move", NAMESPACES[2], "0")]
)
def test_no_answered_write_is_lost(service: type[Service], steps: Sequence[Step]) -> None:
    tried, written = EXAMPLES[service], defaultdict[tuple[str, str], int](int)
    with (
        TemporaryDirectory() as folder,
        ExitStack() as ending,
        Cluster(
            lambda: tried.make(Path(folder), ending),
            brokers=BROKERS,
            patience_ms=20_000,
            serves_peers=True,
        ) as cluster,
    ):
        for namespace in NAMESPACES:
            for bundle in cluster.create(namespace, bundles=2):
                cluster.give(bundle, "a")

        def write(namespace: str, key: str) -> None:
            owner = cluster.owner(cluster.bundle(namespace, key))
            assert owner is not None
            written[namespace, key] += 1
            assert written[namespace, key] == tried.write(
                cluster, cluster.service(owner), namespace, key
            )

        for step, namespace, key in steps:
            if step == "write":
                if namespace in tried.serves:
                    write(namespace, key)
            elif step == "move" or tried.splits:
                make_step(cluster, step, namespace, key)
        for namespace, key in list(written):
            write(namespace, key)
