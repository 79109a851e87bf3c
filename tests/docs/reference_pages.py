"""Write what docs/reference has from the code, and what `make docs` adds to it on the site: `python
-m tests.docs.reference_pages`. With the name of a page, such as `findings.md`, print what the site
adds to that page.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, cast

import orjson

from equipoise.brokers.balancing.settings.pulsar_settings import TAKEN
from equipoise.brokers.balancing.settings.setting_values import (
    GROUPS,
    SETTINGS,
    Setting,
    format_value,
)
from equipoise.brokers.cli.main import GROUPS as GROUPS_OF_COMMANDS
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.channel.core.entries import bundle_entry
from equipoise.channel.core.lifecycle import (
    PHASE_OF_SHAPE,
    STATE_OF_PHASE,
    TRANSITIONS,
    Phase,
)
from equipoise.channel.core.records import INTEGER_MAX, TEXT_CHARACTERS_MAX, Reason
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Rule
from equipoise.spark_jobs.tables.schema import SCHEMAS, SQL_TYPES
from tests.docs.markdown import WRITTEN_BY, cell, mermaid, table
from tests.docs.openapi import document
from tests.docs.pulsar_admin_page import pulsar_admin_page
from tests.docs.record_schema import json_schema
from tests.house.house_rules import ROOT
from tests.unit.cli.command_lines import tree

if TYPE_CHECKING:
    from typer._click import Parameter

FOLDER: Final = ROOT / "docs" / "reference"
BUILT: Final = ROOT / "build" / "reference"
COMMON: Final = {
    "--log",
    "--kafka-config",
    "--kafka-config-file",
    "--json",
    "--timeout",
    "--as",
    "--help",
}
"""The options that docs/reference/cli.md describes once for all commands."""

DURATION_BOUNDS: Final = (1, 86_400_000)
"""The bounds of most durations, in milliseconds."""

SHARED_BY: Final = 3
"""What so many tables have is described once."""

OWNER, SOURCE = 1, 2

Schema = Mapping[str, object]

# In the order in which they are told; the models of one kind stand together.
MODELS: Final = (
    ("GenesisModel", "`genesis`"),
    ("JoinedModel", "`broker`, joined"),
    ("RenewedModel", "`broker`, renewed"),
    ("BrokerModel", "`broker`, draining, left, down, removed"),
    ("NamespaceModel", "`namespace`"),
    ("BundleModel", "`bundle`"),
    ("SplitModel", "`split`"),
    ("MergeModel", "`merge`"),
    ("PolicyModel", "`policy`"),
    ("LevelModel", "`level`"),
)
REASONS: Final = {
    Reason.STALE: (
        "Another record changed the key first: the expected offset is no longer the last one."
    ),
    Reason.LATE: (
        "A newer record of the same incarnation was read already; or an admin's record is too old."
    ),
    Reason.MALFORMED: "The record cannot be read.",
    Reason.ILLEGAL_TRANSITION: "The table of transitions has no such step from the present phase.",
    Reason.NOT_THE_ACTOR: "The table of transitions names another actor for this step.",
    Reason.DEAD_PUBLISHER: "The incarnation that wrote the record has ended.",
    Reason.DEAD_TARGET: "The record gives a bundle to an incarnation that has ended.",
    Reason.DRAINING_TARGET: "The record gives a bundle to a broker that drains.",
    Reason.NOT_SERVED: (
        "The record gives a bundle to a broker whose program does not serve its namespace."
    ),
    Reason.UNKNOWN_BUNDLE: "There is no such bundle.",
    Reason.UNKNOWN_BROKER: "There is no such broker.",
    Reason.UNKNOWN_NAMESPACE: "There is no such namespace.",
    Reason.UNKNOWN_POLICY: "There is no such policy.",
    Reason.NAMESPACE_DELETING: "The namespace is being deleted.",
    Reason.BUNDLES_IN_USE: "The namespace still has bundles that are not free.",
    Reason.NOT_ADJACENT: "The two bundles of a merge are not neighbours.",
    Reason.BAD_BOUNDARY: "The boundaries do not cover the range exactly, or lie outside it.",
    Reason.STILL_ALIVE: "The broker still looks alive, and the record has no proof that it is not.",
    Reason.LEVEL: (
        "The record needs a higher format version than the active one, or a live broker does not"
        " support the version."
    ),
    Reason.NO_GENESIS: "The log has no accepted `genesis` yet.",
    Reason.FOREIGN_GENESIS: "This `genesis` belongs to another cluster or another copy of the log.",
}
FINDINGS_ABOUT: Final = {
    "bundle": "Bundles",
    "namespace": "Namespaces",
    "broker": "Brokers",
    "log": "The log",
}

REMEDIES: Final = {
    (
        "Run `equipoise channel verify`. Keep the log as it is, and report the two verdicts as a"
        " bug."
    ): "verify",
    "Look at the log lines and the clock of the broker that is named.": "look",
    (
        "Find out who can write to the log, and revoke this permission where it is not needed."
    ): "revoke",
    (
        "Check the storage. Run `equipoise channel verify`, and recover the log from a copy."
    ): "recover",
}
"""What is to be done about several findings, which the page says once."""

ENVELOPE: Final = (
    "key",
    "expected_offset",
    "publisher",
    "incarnation",
    "sequence",
    "as_of",
    "level",
    "timestamp_ms",
    "requested_by",
    "traceparent",
)


# --- the life of a bundle ---


def spelling(phase: Phase) -> str:
    """How records spell a phase."""
    ((_, owner, source),) = (shape for shape, other in PHASE_OF_SHAPE.items() if other == phase)
    named = ", ".join(name for name, there in (("owner", owner), ("source", source)) if there)
    return f"`{STATE_OF_PHASE[phase]}`" + (f" with {named}" if named else "")


def who_serves(phase: Phase) -> str:
    """Who serves a bundle in a phase."""
    server = bundle_entry("t/n", 0, 1, phase, owner=OWNER, source=SOURCE, last=0, token=0).server
    return {OWNER: "the owner", SOURCE: "the source", None: "nobody yet"}[server]


def life() -> str:
    """The diagram of transitions, with what makes and ends bundles."""
    drawn = [
        f"{row.before} --> {row.after}: {row.meaning.replace(':', ',')}" for row in TRANSITIONS
    ]
    return mermaid(
        (
            "[*] --> free: its namespace is created",
            *drawn,
            "splitting --> [*]: split, its children are owned",
            "owned --> [*]: merged, the union is owned",
            "free --> [*]: its namespace is deleted",
        )
    )


def lifecycle_page() -> str:
    """docs/reference/lifecycle.md."""
    phases = [(f"`{phase}`", spelling(phase), who_serves(phase)) for phase in STATE_OF_PHASE]
    parts = (
        "# The life of a bundle",
        WRITTEN_BY,
        (
            "A *phase* is the state of a bundle and which brokers its record names. These are the"
            " phases, and their form in records."
        ),
        table(("phase", "spelled", "who serves"), phases),
        "## Transitions",
        (
            "[Section 3 of the protocol](../protocol.md#3-life-of-a-bundle) has who may take each"
            " step, and on which conditions. A new token begins where a bundle becomes `owned` by"
            " another broker. While a namespace is being deleted, no step begins that assigns,"
            " transfers or splits. The section also has what the death of a broker changes."
        ),
        life(),
    )
    return "\n\n".join(parts) + "\n"


# --- records ---


def type_of(schema: Schema) -> str:
    """The type of a field in words."""
    if "anyOf" in schema:
        options = [type_of(option) for option in cast("list[Schema]", schema["anyOf"])]
        return " or ".join(option for option in options if option != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in cast("list[str]", schema["enum"]))
    kind = cast("str", schema["type"])
    if kind == "integer":
        highest = cast("int", schema["maximum"])
        at_least = "" if schema["minimum"] == 0 else f" from {schema['minimum']}"
        return f"integer{at_least}" + ("" if highest == INTEGER_MAX else f" up to {highest}")
    if kind == "string":
        low, highest = schema.get("minLength", 0), cast("int", schema["maxLength"])
        is_usual = (low, highest) == (1, TEXT_CHARACTERS_MAX)
        return "text" if is_usual else f"text of {low} to {highest} characters"
    if kind == "array":
        return f"list of at most {schema['maxItems']}: {type_of(cast('Schema', schema['items']))}"
    if kind == "object":
        return (
            f"object of at most {schema['maxProperties']}:"
            f" {type_of(cast('Schema', schema['additionalProperties']))}"
        )
    return kind


def presence(name: str, model: Schema) -> str:
    """Whether a field must be there, and what its absence stands for; empty if for nothing."""
    if name in cast("list[str]", model["required"]):
        return "; required"
    default = cast("Mapping[str, Schema]", model["properties"])[name].get("default")
    return "" if default is None else f"; default `{orjson.dumps(default).decode()}`"


def field_lines(names: Iterable[str], model: Schema) -> str:
    """The lines about fields; a constant kind or status is told by the heading."""
    properties = cast("Mapping[str, Schema]", model["properties"])
    return "\n".join(
        f"* `{name}` ({type_of(properties[name])}{presence(name, model)}):"
        f" {cell(cast('str', properties[name]['description']))}"
        for name in names
        if "description" in properties[name]
    )


def records_page() -> str:
    """What docs/reference/records.md shows: envelope, fields of each kind, reasons."""
    models = cast("Mapping[str, Schema]", json_schema()["$defs"])
    parts = [
        (
            "Unless a field says otherwise, it is optional, an integer is from 0 to 2^63 - 1, and a"
            f" text has 1 to {TEXT_CHARACTERS_MAX} characters."
        ),
        "## The envelope",
        (
            "Every record has these fields. A broker's record has `incarnation` and `sequence`. An"
            " admin's record has `as_of` instead; its `publisher` begins with `admin:`. `genesis`"
            " and `joined` have none of the three. The key of a `joined` record is its `publisher`,"
            " which is not an admin. `level` is the format version."
        ),
        field_lines(ENVELOPE, models["BundleModel"]),
    ]
    for name, heading in MODELS:
        own = [
            field
            for field in cast("Mapping[str, Schema]", models[name]["properties"])
            if field not in ENVELOPE
        ]
        parts += [f"## {heading}", cast("str", models[name]["description"])]
        lines = field_lines(own, models[name])
        parts += [lines] if lines else []
    parts += [
        "## Reasons of a rejection",
        (
            "The fold rejects a record for one of these reasons. The first two are lost races, and"
            " normal."
        ),
        table(
            ("reason", "meaning"),
            (
                (f"`{reason}`", REASONS[reason])
                for reason in sorted(Reason, key=list(REASONS).index)
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


# --- settings of balancing ---


def settings_page() -> str:
    """docs/reference/settings.md."""
    keys = {
        name: [f"`{key}`" for key, row in TAKEN.items() if name in row.settings]
        for name in SETTINGS
    }
    parts = [
        "# Settings of balancing",
        WRITTEN_BY,
        (
            "These settings are on the channel and apply to all brokers. Change them at run time"
            " with `equipoise balancing set NAME=VALUE`, or with `PATCH /admin/v2/balancing`. For a"
            " setting that is not on the channel, a broker uses the value that it was started with"
            " (`--set`, then what follows from a `--set` of `balance` and `balance_interval_ms`,"
            " then `--broker-conf`), or else the default. An impossible value is refused, and the"
            " old value stays. `none` means no limit. [Tune balancing](../how-to/tune-balancing.md)"
            " shows how to preview a change. The default comes first, then what is allowed (`true`"
            " or `false` where one of them is the default; else an integer of at least 0, unless it"
            " names something else), then the name in Pulsar's `broker.conf`, if it has one."
        ),
    ]
    for group, about in GROUPS.items():
        lines = [
            f"* `{name}`: {'; '.join(value_and_name(setting, keys[name]))}."
            f" {cell(setting.meaning.text)}"
            for name, setting in SETTINGS.items()
            if name.startswith(f"{group}.")
        ]
        parts += [f"## `{group}`", about, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def value_and_name(setting: Setting, keys: Sequence[str]) -> Iterator[str]:
    """Yield the default of a setting with what is allowed, and its names in Pulsar."""
    allowed = setting.expected.replace(", at least 0", "")
    allowed = allowed.removeprefix("an ").removeprefix("a ")
    allowed = allowed.removeprefix("integer").removeprefix(", ")
    is_usual = not allowed or (setting.kind is bool and not setting.optional)
    yield f"`{format_value(setting.default)}`" + ("" if is_usual else f" ({allowed})")
    yield from keys


# --- rules of the audit ---


def finding(rule: Rule) -> str:
    """Return the line of a rule: what must hold, what it means if it is broken, and what to do. The
    command prints that of a rule of Pulsar.
    """
    remedy = REMEDIES.get(rule.remedy, rule.remedy)
    more = f" ({rule.source})" if rule.source else f" *Do*: {cell(remedy)}"
    return f"* `{rule.name}`, {rule.severity}: {cell(rule.says)} *Else*: {cell(rule.means)}{more}"


def findings_page() -> str:
    """What docs/reference/findings.md shows: remedies, and the rules by their subjects."""
    parts = [
        "\n".join(f"* *{name}*: {remedy}" for remedy, name in REMEDIES.items()),
    ]
    for kind, about in FINDINGS_ABOUT.items():
        rules = [rule for rule in RULES.values() if rule.subject == kind and not rule.source]
        parts += [f"## {about}", "\n".join(map(finding, rules))]
    parts += [
        "## The channel of a Pulsar cluster",
        (
            "`equipoise spark pulsar` checks a recording of a real Pulsar cluster by these rules,"
            " and prints what to do. Each comes from Pulsar's design documents (PIPs) or from the"
            " class that is named."
        ),
        "\n".join(finding(rule) for rule in RULES.values() if rule.source),
    ]
    return "\n\n".join(parts) + "\n"


# --- the archive ---


def archive_page() -> str:
    """What docs/reference/archive.md shows: the columns of each table."""
    columns = {
        schema.table: [
            f"* `{column.name}` {SQL_TYPES[column.type]}: {column.meaning}"
            for column in schema.columns
        ]
        for schema in SCHEMAS.values()
    }
    uses = Counter(line for lines in columns.values() for line in lines)
    often = {
        line.split()[1]: line for line, times in reversed(uses.most_common()) if times >= SHARED_BY
    }
    shared = [line for line in uses if line in often.values()]
    parts = [
        "Unless a table describes them itself, these columns mean:",
        "\n".join(shared),
    ]
    for schema in SCHEMAS.values():
        lines = columns[schema.table]
        also = [line.split()[1] for line in lines if line in shared]
        parts += [
            f"### `{schema.table}`",
            f"{schema.meaning}." + (f" Has {', '.join(also)}." if also else ""),
            "\n".join(line for line in lines if line not in shared),
        ]
    return "\n\n".join(parts) + "\n"


# --- the command line ---


def option(parameter: Parameter) -> str:
    """Return the line of one option: how it is written, what it does, and its default."""
    is_flag = getattr(parameter, "is_flag", False)
    value = "" if is_flag else f" {parameter.metavar or 'VALUE'}"
    shown = ", ".join(
        f"`{name}{value if name.startswith('--') else ''}`"
        for name in (*parameter.opts, *parameter.secondary_opts)
    )
    text, _, named = cell(getattr(parameter, "help", None) or "").partition("[default: ")
    default = named.removesuffix("]")
    if (
        not default
        and not is_flag
        and parameter.default not in (None, False, ())
        and not callable(parameter.default)
    ):
        default = f"{parameter.default}"
    says = f" Default: {default}." if default else " Required." if parameter.required else ""
    return f"* {shown}: {text.strip()}{says}"


def commands_page() -> str:
    """What docs/reference/commands.md shows, with the options of several commands once."""
    own = {
        name: [
            parameter
            for parameter in command.params
            if parameter.opts[0] not in COMMON and not getattr(parameter, "hidden", False)
        ]
        for name, command in tree()
    }
    uses = Counter(
        option(parameter)
        for parameters in own.values()
        for parameter in parameters
        if parameter.opts[0].startswith("-")
    )
    meanings = Counter(line.split("`")[1] for line in uses)
    shared = {
        line for line, times in uses.items() if times > 1 and meanings[line.split("`")[1]] == 1
    }
    shared_in = {group: shared_in_group(group, own) - shared for group in GROUPS_OF_COMMANDS}
    parts = [
        "These are the options that several commands have:",
        "\n".join(line for line in uses if line in shared),
    ]
    group = ""
    for name, command in tree():
        is_group = " " in name
        if is_group and name.split()[0] != group:
            group = name.split()[0]
            parts += [f"## `equipoise {group}`", GROUPS_OF_COMMANDS[group][1]]
            lines = [line for line in uses if line in shared_in[group]]
            parts += ["Options of several of these:\n\n" + "\n".join(lines)] if lines else []
        options = [each for each in own[name] if each.opts[0].startswith("-")]
        arguments = "".join(
            f" {each.metavar or each.name}" for each in own[name] if each not in options
        )
        parts += [
            f"{'###' if is_group else '##'} `equipoise {name}{arguments}`",
            cell((command.help or "").partition("\n\n")[0]),
        ]
        elsewhere = shared | (shared_in[group] if is_group else set())
        lines = [option(each) for each in options if option(each) not in elsewhere]
        parts += ["\n".join(lines)] if lines else []
        also = [f"`{each.opts[0]}`" for each in options if option(each) in elsewhere]
        parts += [f"Also: {', '.join(also)}."] if also else []
    return "\n\n".join(parts) + "\n"


def shared_in_group(group: str, own: Mapping[str, Sequence[Parameter]]) -> set[str]:
    """Return the options that several commands of a group have with one meaning, which no two
    others have with another.
    """
    uses = Counter(
        option(parameter)
        for name, parameters in own.items()
        for parameter in parameters
        if name.startswith(f"{group} ") and parameter.opts[0].startswith("-")
    )
    often = [line for line, times in uses.items() if times > 1]
    meanings = Counter(line.split("`")[1].split()[0] for line in often)
    return {line for line in often if meanings[line.split("`")[1].split()[0]] == 1}


# --- settings of a broker ---


def broker_settings_page() -> str:
    """Return docs/reference/broker-settings.md."""
    schema = WorkerConfig.model_json_schema()
    fields = cast("Mapping[str, Schema]", schema["properties"])
    lines = [
        (
            f"* `{name}`{limits(field)}: "
            if field.get("default") in (None, {}, [])
            else f"* `{name}`: `{orjson.dumps(field['default']).decode()}`{limits(field)}. "
        )
        + cell(str(field.get("description", "")))
        for name, field in fields.items()
        if "$ref" not in field
    ]
    parts = (
        "# Settings of a broker",
        WRITTEN_BY,
        (
            "Give them to `equipoise broker` and `equipoise up` as `--set NAME=VALUE`; some have an"
            " option of their own. A program gives them to `Equipoise` as keywords. Durations are"
            " in milliseconds. The defaults of the durations are those of a log in a file; [on"
            " Kafka they are longer](../how-to/size-leases.md). [The settings of"
            " balancing](settings.md) can be given here, too. Changed files of keys, passwords,"
            " certificates and revocation lists are used within a second, without a restart."
            " Secrets are never printed. Unless a setting says otherwise, it is a text, `true` or"
            f" `false`, or an integer from {DURATION_BOUNDS[0]} to {DURATION_BOUNDS[1]:,}."
        ),
        "\n".join(lines),
    )
    return "\n\n".join(parts) + "\n"


def limits(field: Schema) -> str:
    """Return the type of a setting with its bounds in brackets; nothing for the usual ones."""
    options = cast("list[Schema]", field.get("anyOf", [field]))
    kind = next((option for option in options if option.get("type") != "null"), field)
    low, high = kind.get("minimum", kind.get("exclusiveMinimum")), kind.get("maximum")
    is_bounded = isinstance(high, int | float) and high < INTEGER_MAX
    bounds = "" if low is None else f", {low:,} to {high:,}" if is_bounded else f", at least {low}"
    names = {"boolean": "", "string": "", "object": "names with values", "array": "a list"}
    name = names.get(str(kind.get("type", "string")), str(kind.get("type")))
    is_usual = not name or (low, high) == DURATION_BOUNDS
    return "" if is_usual else f" ({name}{bounds})"


def pages() -> dict[str, bytes]:
    """Every file that is drawn from the code and kept, by its name in docs/reference."""
    return {
        "broker-settings.md": broker_settings_page().encode(),
        "lifecycle.md": lifecycle_page().encode(),
        "settings.md": settings_page().encode(),
        "openapi.json": orjson.dumps(
            document(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        ),
        "records.schema.json": orjson.dumps(
            json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        ),
    }


@cache
def parts_of_site() -> dict[str, str]:
    """What the site shows in place of `[REFERENCE]`, by the name of the page in docs/reference."""
    return {
        "archive.md": archive_page(),
        "commands.md": commands_page(),
        "findings.md": findings_page(),
        "pulsar-admin.md": pulsar_admin_page(),
        "records.md": records_page(),
    }


def main(names: Sequence[str]) -> None:
    """Write what is kept, and what `make docs` needs; or print what the site shows on pages."""
    parts = parts_of_site()
    for name in names:
        sys.stdout.write(parts[name])
    if names:
        return
    for name, text in pages().items():
        (FOLDER / name).write_bytes(text)
    BUILT.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        (BUILT / name).write_text(part, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
