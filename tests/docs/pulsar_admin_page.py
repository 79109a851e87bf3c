"""Write the page about pulsar-admin from what its commands did in the test: `python -m
tests.docs.pulsar_admin_page`.
"""

from __future__ import annotations

from typing import Final

from tests.docs.markdown import cell, table
from tests.docs.reference_pages import FOLDER
from tests.pulsar.admin_script import NOT_HERE, WORKS, Group, read_groups

PAGE: Final = FOLDER / "pulsar-admin.md"


def page() -> str:
    """Return docs/reference/pulsar-admin.md."""
    groups = read_groups()
    parts = [
        "# pulsar-admin",
        (
            "Written by `python -m tests.docs.pulsar_admin_page` from what the test of the tool"
            " recorded."
        ),
        (
            "The command-line tool of Apache Pulsar 4.0.8 works with a broker whose services"
            " include `pulsar`. Give it the broker's HTTP address: `pulsar-admin --admin-url"
            " http://127.0.0.1:8080 namespaces list acme`, or `webServiceUrl` in its `client.conf`."
            " A test runs each command of these groups, with each of its options, against three"
            " brokers with clients. The exit code is 0 if the command succeeded, and 1 if not, as"
            " with Pulsar."
        ),
        (
            "* **works**: as with Pulsar.\n* **differs**: the remark says how.\n* **not here**: the"
            " tool prints the remark, and exits with 1."
        ),
    ]
    for group in groups:
        parts += [
            f"## {group.name}",
            table(
                ("command", "verdict", "remark"),
                (_row(group, command) for command in group.verdicts),
            ),
        ]
    return "\n\n".join(parts) + "\n"


def _row(group: Group, command: str) -> tuple[str, str, str]:
    verdict, _, how = group.verdicts[command].partition(": ")
    remark = how or (group.lines_of(command)[0].prints if verdict == NOT_HERE else "")
    return (
        f"`{command.removeprefix(f'{group.name} ')}`",
        verdict if verdict == WORKS else f"**{verdict}**",
        cell(remark),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
