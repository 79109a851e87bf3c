"""Services named on a command line: what is loaded, and the message of each mistake."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from equipoise.brokers.runtime import services
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.runtime.services import load_services
from equipoise.channel.core.errors import CallerError

MODULE = """
from equipoise.brokers.runtime.service import Service

class Good(Service):
    async def open(self, ownership, handover): ...
    async def close(self, bundle, moved_to, deadline): ...

class Abstract(Service):
    pass

class Greedy(Good):
    def __init__(self, what): ...

class Failing(Good):
    def __init__(self):
        raise ValueError("no store")

class Stranger:
    pass

good = Good()
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder holds some modules that are not imported yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("services_here", "broken_here", "needy_here", "exiting_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "services_here.py").write_text(MODULE)
    (tmp_path / "broken_here.py").write_text("def broken(:\n")
    (tmp_path / "needy_here.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "exiting_here.py").write_text("raise SystemExit(3)\n")


def test_services_are_loaded_by_pattern() -> None:
    services = load_services(["services_here:Good", "a=b/*=services_here:Good"])
    assert ["*", "a=b/*"] == list(services)
    assert all(isinstance(service, Service) for service in services.values())


MISTAKES = {
    "[*=services_here:Good": "no namespace matches '[*'",
    "services_here": "its form is not [PATTERN=]MODULE:CLASS",
    "services_here:": "its form is not [PATTERN=]MODULE:CLASS",
    ":Good": "its form is not [PATTERN=]MODULE:CLASS",
    "=services_here:Good": "its form is not [PATTERN=]MODULE:CLASS",
    "services_here:Good.more": "its form is not [PATTERN=]MODULE:CLASS",
    "../services_here:Good": "its form is not [PATTERN=]MODULE:CLASS",
    "\udc80:Good": "its form is not [PATTERN=]MODULE:CLASS",
    "nowhere_to_be_found:Good": "there is no module nowhere_to_be_found;",
    "services_here.deeper:Good": "there is no module services_here.deeper;",
    "services_here:Missing": "the module services_here has no Missing",
    "services_here:good": "good is no class that descends from equipoise.Service",
    "services_here:Stranger": "Stranger is no class that descends from equipoise.Service",
    "services_here:Abstract": "Abstract leaves out close, open;",
    "services_here:Greedy": "making one failed with TypeError: ",
    "services_here:Failing": "making one failed with ValueError: no store",
    "broken_here:Good": "importing broken_here failed with SyntaxError: ",
    "needy_here:Good": "the module needy_here imports nowhere_to_be_found, which is not there",
    "exiting_here:Good": "importing exiting_here failed with SystemExit: 3",
}


@pytest.mark.parametrize("service", MISTAKES)
def test_each_mistake_is_named(service: str) -> None:
    with pytest.raises(CallerError) as caught:
        load_services([service])
    assert MISTAKES[service] in str(caught.value)


def test_a_class_for_several_patterns_is_one_instance() -> None:
    """Two instances would want the same HTTP routes."""
    services = load_services(["a/*=services_here:Good", "b/*=services_here:Good"])
    assert services["a/*"] is services["b/*"]


def test_a_pattern_has_one_service() -> None:
    with pytest.raises(CallerError, match="have a service already"):
        load_services(["x/*=services_here:Good", "x/*=services_here:Good"])


def test_without_the_extra_of_pulsar_a_local_cluster_runs_the_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that lacks a library in the same package, such as `google`, needs another one."""
    monkeypatch.setattr(services, "_NEEDED_BY_PULSAR", ("nowhere_to_be_found.library",))
    assert "counter" == services.default_service()
    with pytest.raises(CallerError, match="imports nowhere_to_be_found, which is not there"):
        load_services(["needy_here:Good"])
