"""The public API: its names, and that other names stay free for users."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise import (
    BundleLoad,
    Client,
    Cluster,
    Deadline,
    Equipoise,
    Identity,
    Keyed,
    Messaging,
    Ownership,
    Peer,
    PostgresStore,
    RedisStore,
    Response,
    Shard,
    SqliteStore,
    Tasks,
    errors,
)
from tests.visits import Visits

ROOT = Path(__file__).resolve().parents[3]


USE = "import channel; assert channel.mine; from equipoise import Client, Cluster, Equipoise"


def imported(folder: Path) -> subprocess.CompletedProcess[str]:
    """Import equipoise in a program whose own folder is `folder`."""
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; {USE}"
    return subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )


def test_every_public_name_is_documented() -> None:
    """Every public error descends from `EquipoiseError`."""
    assert [] == [name for name in equipoise.__all__ if not getattr(equipoise, name).__doc__]
    assert [] == [
        name
        for name in errors.__all__
        if not issubclass(getattr(errors, name), errors.EquipoiseError)
    ]


def test_every_public_name_is_declared_for_type_checkers() -> None:
    """They are imported at first use."""
    tree = ast.parse((ROOT / "equipoise" / "__init__.py").read_text(encoding="utf-8"))
    declared = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(equipoise.__all__) <= declared
    assert set(equipoise.__all__) == set(dir(equipoise))


NAMESPACE = "web/pages"
BUNDLE = f"{NAMESPACE}/0x00000000_0xffffffff"
PLANTED = "planted-secret"


async def work_on(shard: Shard) -> None:
    """Do nothing."""


SHOWN_LOAD = (
    "BundleLoad(calls_per_second=0.0, bytes_per_second=0.0, cpu_seconds_per_second=0.0,"
    " wall_seconds_per_second=0.0, sessions=2, memory_bytes=0, cost=0.0, unit='', messaging=None)"
)


def shown() -> dict[str, tuple[object, str]]:
    """Return an object of each public class, with a pattern of what a debugger shows of it."""
    with Cluster(Visits, brokers=1) as cluster:
        cluster.create(NAMESPACE, bundles=1)
        ownership = cluster.ownership(NAMESPACE, "home")
        work = ownership.begin("home" * 100)
        within = repr(cluster)
    assert within == "<Cluster of broker-1 at 1000000 ms>"
    kafka = f"kafka://me:{PLANTED}@host:9092/channel"
    member = Equipoise(kafka, {"*": Visits()}, cluster="shown")
    client = Client(f"http://me:{PLANTED}@one:8080", "http://two:8080")
    numbers = (
        "messages_in_per_second=0.0, bytes_in_per_second=0.0, messages_out_per_second=0.0,"
        " bytes_out_per_second=0.0, producers=2"
    )
    return {
        "Bundle": (
            ownership.bundle,
            f"Bundle(name='{BUNDLE}', namespace='{NAMESPACE}', low=0, high=4294967295)",
        ),
        "BundleLoad": (
            BundleLoad(sessions=2),
            SHOWN_LOAD,
        ),
        "Client": (client, "<Client of http://***@one:8080, http://two:8080, not running>"),
        "ClientInThread": (
            client.in_thread(),
            "<ClientInThread of <Client of http://***@one:8080, http://two:8080, not running>>",
        ),
        "Cluster": (Cluster(Visits), "<Cluster of no broker at 1000000 ms>"),
        "Deadline": (Deadline(started_ns=0, timeout_ms=0), "<Deadline: 0 of 0 ms left>"),
        "Equipoise": (
            Equipoise("memory:shown", cluster="shown", broker_id="a"),
            "<Equipoise a on memory:shown, not running>",
        ),
        "Identity": (
            Identity(role="orders", method="token", valid_ms=None),
            "Identity(role='orders', method='token', valid_ms=None, proxy=None)",
        ),
        "Keyed": (Keyed(NAMESPACE, dict), f"<Keyed dict of {NAMESPACE}, 0 open bundles>"),
        "Messaging": (Messaging(producers=2), f"Messaging({numbers}, consumers=0, topics=0)"),
        "Ownership": (ownership, f"<Ownership of {BUNDLE}, token {ownership.token}, good>"),
        "Peer": (
            Peer(broker="a", addresses={"http": "http://a"}),
            "Peer(broker='a', addresses={'http': 'http://a'})",
        ),
        "PostgresStore": (
            PostgresStore(f"postgresql://me:{PLANTED}@host/states"),
            "<PostgresStore postgresql://host/states>",
        ),
        "RedisStore": (
            RedisStore(f"redis://:{PLANTED}@host:6379/0"),
            "<RedisStore redis://host:6379/0>",
        ),
        "Response": (
            Response(status_code=200, headers={"Cookie": PLANTED}, content=PLANTED.encode()),
            "<Response 200, 14 bytes>",
        ),
        "Shard": (
            Shard(ownership),
            f"Shard(ownership=<Ownership of {BUNDLE}, token {ownership.token}, good>)",
        ),
        "SqliteStore": (SqliteStore("states.db"), "<SqliteStore states.db>"),
        "Tasks": (Tasks(NAMESPACE, work_on), f"<Tasks of {NAMESPACE}, 0 open bundles>"),
        "Work": (work, f"<Work on 'homehomehome...ehomehomehome' of {BUNDLE}, token {work.token}>"),
        "WorkerInThread": (member.in_thread(), f"<WorkerInThread of {member!r}>"),
    }


def test_a_debugger_shows_what_an_object_stands_for() -> None:
    """Shortly, and without secrets. Of the classes that users implement, theirs does. Functions
    show themselves.
    """
    found = shown()
    others = {"Service", "ServiceHost", "Store", "current_work", "identity_of", "key_hash"}
    assert set(equipoise.__all__) - others == set(found)
    for name, (each, expected) in found.items():
        assert type(each).__name__ == name
        assert repr(each) == expected
        assert PLANTED not in repr(each)


async def test_a_debugger_shows_the_state_of_a_worker_and_a_client() -> None:
    """The id of a broker that was given none is known before it runs."""
    worker = Equipoise("memory:shown", {"*": Visits()}, cluster="shown", broker_id="a")
    before = repr(worker)
    async with worker, Client("memory:shown") as client:
        assert (
            repr(worker)
            == f"<Equipoise {worker.broker_id} on memory:shown, running>"
            == before.replace("not running", "running")
        )
        assert repr(client) == "<Client of memory:shown, running>"
        await worker.create_namespace(NAMESPACE, bundles=1)
        ownership = await worker.route(NAMESPACE, "home")
        assert isinstance(ownership, Ownership)
        assert repr(ownership) == f"<Ownership of {BUNDLE}, token {ownership.token}, good>"
    assert repr(ownership) == f"<Ownership of {BUNDLE}, token {ownership.token}, lost>"
    assert repr(worker) == before


def test_a_wrong_address_is_refused_without_its_password() -> None:
    with pytest.raises(errors.CallerError, match=r"http://\*\*\*@one") as caught:
        Client(f"http://me:{PLANTED}@one", "sqlite:channel.db")
    assert PLANTED not in str(caught.value)


def test_type_checkers_see_each_public_name_used() -> None:
    """In the program that `make check` has them look at."""
    tree = ast.parse(
        (ROOT / "tests" / "unit" / "examples" / "public_names.py").read_text(encoding="utf-8")
    )
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {*equipoise.__all__, *errors.__all__} <= used


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sharder'"):
        equipoise.Sharder  # noqa: B018 - the access is the test


def test_examples_import_public_names_only() -> None:
    for path in sorted((ROOT / "equipoise" / "examples").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
        }
        assert [] == [
            name
            for name in found
            if name.startswith("equipoise.")
            and not name.startswith(("equipoise.errors", "equipoise.examples"))
        ], path


@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_a_program_may_have_packages_of_our_names(tmp_path: Path, form: str) -> None:
    """Such as its own `channel`, `brokers` and `tests`."""
    for name in ("brokers", "channel", "shedder", "compaction", "tests"):
        own = tmp_path / form.format(name)
        own.parent.mkdir(exist_ok=True)
        own.write_text("mine = True\n")
    outcome = imported(tmp_path)
    assert (0, "") == (outcome.returncode, outcome.stderr)
