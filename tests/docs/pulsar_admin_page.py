"""List what the commands of pulsar-admin did in the test."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.markdown import cell
from tests.pulsar.admin_script import NOT_HERE, Group, read_groups


def pulsar_admin_page() -> str:
    """What docs/reference/pulsar-admin.md shows: the verdicts, by groups of commands."""
    return "\n\n".join(
        part for group in read_groups() for part in (f"## {group.name}", "\n".join(_lines(group)))
    )


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
