"""Services as a command line names them: `[PATTERN=]MODULE:CLASS`.

May live here: from that text to an instance of the class, with an error that says what is wrong wherever it goes wrong.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from brokers.service import Service
from channel.errors import InvalidService

ALL_NAMESPACES: Final = "*"

# A module's name has neither `=` nor `:`, a pattern may have both, as namespaces do.
_match_service: Final = re.compile(r"(?:(?P<pattern>.+)=)?(?P<module>\w+(?:\.\w+)*):(?P<name>\w+)").fullmatch


def load_services(named: Iterable[str]) -> Mapping[str, Service]:
    """Services by the pattern of the namespaces that they serve; a class that is named for several serves them as one instance.

    Modules are looked for where Python looks for them, and then in the working folder. Raises `InvalidService`.
    """
    services: dict[str, Service] = {}
    # Two instances of one class would want the same HTTP routes.
    instances: dict[tuple[str, str], Service] = {}
    for service in named:
        match = _match_service(service)
        if match is None:
            raise InvalidService(service=service, problem="it has another form")
        pattern = match["pattern"] or ALL_NAMESPACES
        if pattern in services:
            raise InvalidService(service=service, problem=f"namespaces of the form {pattern!r} have a service already")
        kind = match["module"], match["name"]
        if kind not in instances:
            instances[kind] = _instance(service, module=match["module"], name=match["name"])
        services[pattern] = instances[kind]
    return services


def _instance(service: str, *, module: str, name: str) -> Service:
    kind = getattr(_imported(service, module), name, None)
    if kind is None:
        raise InvalidService(service=service, problem=f"the module {module} has no {name}")
    if not (isinstance(kind, type) and issubclass(kind, Service)):
        raise InvalidService(service=service, problem=f"{name} is no class that descends from equipoise.Service")
    try:
        return kind()
    except Exception as error:  # The class is the user's: whatever it raises is what is wrong with it.
        raise InvalidService(service=service, problem=f"making one failed with {_told(error)}") from error


def _imported(service: str, module: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        is_itself = module == missing or module.startswith(f"{missing}.")
        problem = f"there is no module {missing}" if is_itself else f"the module {module} imports {missing}, which is not there"
        raise InvalidService(service=service, problem=problem) from error
    except (Exception, SystemExit) as error:  # As above.
        raise InvalidService(service=service, problem=f"importing {module} failed with {_told(error)}") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
