"""Write the page about pulsar-admin from what its commands did in the test: `python -m
tests.docs.pulsar_admin_page`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.docs.markdown import cell
from tests.docs.reference_pages import FOLDER
from tests.pulsar.admin_script import NOT_HERE, Group, read_groups

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
            "*Works*: as with Pulsar. *Differs*: the text says how. *Not here*: the tool prints"
            " why (`terminate`: `null`), and often what to use instead, and exits with 1."
        ),
    ]
    for group in groups:
        parts += [f"## {group.name}", "\n".join(_lines(group))]
    return "\n\n".join(parts) + "\n"


def _lines(group: Group) -> Iterator[str]:
    """Yield a line for each verdict of a group. The line of the most commands is the last: where
    they are many, it names none.
    """
    commands: dict[str, list[str]] = {}
    for command, verdict in group.verdicts.items():
        kind, _, how = re.sub(
            r"because `set-[\w-]+` is", "because the command that sets it is", verdict
        ).partition(": ")
        told = f"*{kind}*: {cell(how)}" if how and kind != NOT_HERE else f"*{kind}*"
        commands.setdefault(told, []).append(f"`{command.removeprefix(f'{group.name} ')}`")
    most = max(map(len, commands.values()))
    for told, names in sorted(commands.items(), key=lambda item: len(item[1]) == most):
        yield f"* {'All others' if len(names) == most >= 10 else ', '.join(names)}: {told}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
