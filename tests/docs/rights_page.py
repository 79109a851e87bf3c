"""Write the page about rights from the cases that a test asks a broker for: `python -m
tests.docs.rights_page`.
"""

from __future__ import annotations

from typing import Final

from tests.docs.markdown import cell, table
from tests.docs.reference_pages import FOLDER
from tests.unit.pulsar.wire_client import T
from tests.unit.security.who_may import ASKED, SUPER

PAGE: Final = FOLDER / "rights.md"

IN_THE_NAMESPACE: Final = {"producer": "produce", "consumer": "consume", "tenant": "tenant admin"}
IN_THE_CLUSTER: Final = {
    "no credentials": "nothing, no credentials either",
    "nobody": "nothing",
    "viewer": "`read`",
    "operator": "`operate`",
    "admin": "`admin`",
    SUPER: "super role",
}
"""The roles of the cases, each with what all roles after it may do, too."""


def page() -> str:
    """Return docs/reference/rights.md."""
    parts = [
        "# Rights",
        "Written by `python -m tests.docs.rights_page`; do not edit.",
        (
            "Who may do what, if brokers run with `authorization`. A test asks a broker for each of"
            " these as each role. [Grant rights](../how-to/grant-rights.md) shows how a role gets"
            " its rights."
        ),
        "## Who may do what",
        (
            "A role needs one of these: a right in the namespace of the request or its tenant, or a"
            " right in the cluster, where each includes all before it: `read`, `operate`, `admin`,"
            " super role."
        ),
        table(("request", "at", "in the namespace", "in the cluster"), _who_may()),
        (
            "A role without the right gets 403 (`NotAuthorized`) over HTTP, and Pulsar's error"
            " `AuthorizationError` on the Pulsar port. Without valid credentials it is 401, and"
            " `AuthenticationError`."
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _who_may() -> list[tuple[str, ...]]:
    rows: dict[str, tuple[frozenset[str], list[str]]] = {}
    for asked in ASKED:
        may, at = rows.setdefault(asked.row, (asked.may, []))
        assert may == asked.may or asked.http is None, "one row has one answer over HTTP"
        at += [f"`{asked.http[0]}`" if asked.http else f"`{T.Name(asked.command or 0)}`"]
    return [
        (cell(row), ", ".join(dict.fromkeys(at)), _in_the_namespace(may), _in_the_cluster(may))
        for row, (may, at) in rows.items()
    ]


def _in_the_namespace(may: frozenset[str]) -> str:
    return ", ".join(name for role, name in IN_THE_NAMESPACE.items() if role in may)


def _in_the_cluster(may: frozenset[str]) -> str:
    """Return the least right of those that are each a part of the next one."""
    rights = list(IN_THE_CLUSTER)
    least = next(number for number, role in enumerate(rights) if role in may)
    assert may.issuperset(rights[least:]), "a right has all before it"
    return IN_THE_CLUSTER[rights[least]]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
