"""Load services by their command-line names: `[PATTERN=]MODULE:CLASS`, or the short name of a
built-in one.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from inspect import isabstract
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Final

from equipoise.brokers.errors import invalid_service
from equipoise.brokers.runtime.service import Service
from equipoise.brokers.runtime.service_runner import ALL_NAMESPACES, check_pattern

PULSAR: Final = "pulsar"
COUNTER: Final = "counter"

# The short names of the built-in services.
_NAMED: Final = {
    COUNTER: "equipoise.examples.counter:Counter",
    PULSAR: "equipoise.brokers.pulsar.service:PulsarService",
}

# The modules that the extra `pulsar` installs.
_NEEDED_BY_PULSAR: Final = ("google.protobuf", "google_crc32c")

_NEEDS_PULSAR: Final = (
    "it needs the extra `pulsar`: pip install 'equipoise[pulsar]', or name another service with"
    " --service"
)

# A module name has neither `=` nor `:`. A pattern may have both, like a namespace.
_match_service: Final = re.compile(
    r"(?:(?P<pattern>.+)=)?(?P<module>\w+(?:\.\w+)*):(?P<name>\w+)"
).fullmatch


def default_service() -> str:
    """Return the default service of a local cluster: `pulsar` if its extra is installed, else the
    example.
    """
    try:
        return PULSAR if all(map(find_spec, _NEEDED_BY_PULSAR)) else COUNTER
    except ModuleNotFoundError:  # Its parent package is missing, too.
        return COUNTER


def speaks_pulsar(kinds: Iterable[type[Service]]) -> bool:
    """Return whether one of these services takes Pulsar's clients, and so needs a port for them."""
    module, _, name = _NAMED[PULSAR].partition(":")
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and any(issubclass(each, kind) for each in kinds)


def load_services(named: Iterable[str]) -> Mapping[str, Service]:
    """Return services by pattern of namespaces. A class that is named several times gives one
    instance.

    Raises `CallerError`, as `service_classes` does.
    """
    # Two instances of one class would want the same HTTP routes.
    instances: dict[type[Service], Service] = {}
    services: dict[str, Service] = {}
    for pattern, kind in service_classes(named).items():
        if kind not in instances:
            instances[kind] = _instance(kind)
        services[pattern] = instances[kind]
    return services


def service_classes(named: Iterable[str]) -> Mapping[str, type[Service]]:
    """Return the classes of services by pattern, without making instances.

    Modules are searched on Python's path, then in the working directory. Raises `CallerError`.
    """
    classes: dict[str, type[Service]] = {}
    for service in named:
        match = _match_service(_full_name(service))
        if match is None:
            raise invalid_service(service=service, problem="its form is not [PATTERN=]MODULE:CLASS")
        pattern = match["pattern"] or ALL_NAMESPACES
        check_pattern(pattern)
        if pattern in classes:
            raise invalid_service(
                service=service,
                problem=f"namespaces of the form {pattern!r} have a service already",
            )
        classes[pattern] = _class(service, module=match["module"], name=match["name"])
    return classes


def _full_name(service: str) -> str:
    pattern, equals, name = service.rpartition("=")
    return f"{pattern}{equals}{_NAMED.get(name, name)}"


def _class(service: str, *, module: str, name: str) -> type[Service]:
    kind = getattr(_imported(service, module), name, None)
    if kind is None:
        raise invalid_service(service=service, problem=f"the module {module} has no {name}")
    if not (isinstance(kind, type) and issubclass(kind, Service)):
        raise invalid_service(
            service=service, problem=f"{name} is no class that descends from equipoise.Service"
        )
    if isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise invalid_service(service=service, problem=f"{name} leaves out {missing}")
    return kind


def _instance(kind: type[Service]) -> Service:
    try:
        return kind()
    except Exception as error:  # User code may raise anything.
        service = f"{kind.__module__}:{kind.__qualname__}"
        raise invalid_service(
            service=service, problem=f"making one failed with {_described(error)}"
        ) from error


def _imported(service: str, module: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        # The name proves nothing: other libraries than Pulsar's are in the package `google`, too.
        names = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
        problem = (
            _NEEDS_PULSAR
            if any(name.startswith(_NAMED[PULSAR].rpartition(".")[0]) for name in names)
            else f"there is no module {missing}"
            if f"{module}.".startswith(f"{missing}.")
            else f"the module {module} imports {missing}, which is not there"
        )
        raise invalid_service(service=service, problem=problem) from error
    except (Exception, SystemExit) as error:  # User code may raise anything.
        raise invalid_service(
            service=service, problem=f"importing {module} failed with {_described(error)}"
        ) from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
