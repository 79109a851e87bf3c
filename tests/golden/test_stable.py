"""Nothing that docs/reference/stability.md promises is gone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from equipoise.brokers.balancing.settings.setting_values import SETTINGS
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.spark_jobs.tables.schema import SCHEMAS
from tests.docs.openapi import document
from tests.docs.public_api import calls
from tests.house.house_rules import ROOT
from tests.unit.cli.command_lines import tree

STABLE: Final = Path(__file__).with_name("stable.json")
# Their form may change, or they are for brokers only.
UNSTABLE: Final = ("/page/", "/v1/assurance", "/v1/handover", "/v1/opened", "/v1/overview")


def today() -> Mapping[str, Iterable[str]]:
    """Return what there is, by kind."""
    paths: Mapping[str, Any] = document()["paths"]
    return {
        "commands": [
            f"{name} {option}"
            for name, command in tree()
            for parameter in command.params
            for option in parameter.opts
        ],
        "http": [
            f"{method.upper()} {path}"
            for path, methods in paths.items()
            for method in methods
            if method != "parameters" and not path.startswith(UNSTABLE)
        ],
        # Other tests compare that page with what brokers and jobs measure.
        "metrics": re.findall(
            r"^\| `(equipoise_\w+)`",
            (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        ),
        "names": [call.name for call in calls()],
        "settings": [*WorkerConfig.model_fields, *SETTINGS],
        "tables": [
            f"{schema.table}.{column.name} {column.type}"
            for schema in SCHEMAS.values()
            for column in schema.columns
        ],
    }


def test_nothing_stable_is_gone() -> None:
    found = {kind: sorted({*names}) for kind, names in today().items()}
    if os.environ.get("EQUIPOISE_TEST_REWRITE"):
        STABLE.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    stable = json.loads(STABLE.read_text(encoding="utf-8"))
    assert found.keys() == stable.keys()
    gone = {kind: sorted({*names} - {*found[kind]}) for kind, names in stable.items()}
    assert {} == {kind: names for kind, names in gone.items() if names}
