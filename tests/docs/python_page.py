"""Draw docs/reference/python.md from the signatures and docstrings of the public API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final, NamedTuple

import equipoise
from equipoise import errors
from equipoise import pytest as plugin
from tests.docs.markdown import WRITTEN_BY, mermaid, table

LINE_CHARACTERS_MAX: Final = 100

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Write a service": (
        "Service",
        "ServiceHost",
        "Ownership",
        "Work",
        "Bundle",
        "Peer",
        "Deadline",
        "BundleLoad",
        "Messaging",
        "key_hash",
        "identity_of",
        "Identity",
    ),
    "Make a program a member": (
        "Equipoise",
        "Keyed",
        "Store",
        "SqliteStore",
        "PostgresStore",
        "RedisStore",
        "Tasks",
        "Shard",
    ),
    "Run a broker in a program": ("WorkerInThread", "current_work"),
    "Call a service": ("Client", "ClientInThread", "Response"),
    "Test a service": ("Cluster", "MakeCluster", "MovesAtEveryAwait", "MakeProcesses"),
}
"""The public names, in the order of the page."""

MADE_BY_EQUIPOISE: Final = frozenset(
    {
        "ClientInThread",
        "Identity",
        "MakeCluster",
        "MakeProcesses",
        "MovesAtEveryAwait",
        "Ownership",
        "ServiceHost",
        "Shard",
        "Store",
        "Work",
        "WorkerInThread",
    }
)
"""The classes whose objects a program gets and never makes, so that their constructors are not on
the page."""

ELSEWHERE: Final = "[*]"
"""A bundle that this broker has nothing to do with."""

LIFE: Final[Mapping[tuple[str, str], str]] = {
    (ELSEWHERE, "prepare"): "this broker shall serve the bundle",
    ("prepare", "open"): "no other broker serves it",
    ("prepare", "discard"): "the move was cancelled",
    ("prepare", ELSEWHERE): "it failed, the bundle stays where it is",
    ("discard", ELSEWHERE): "",
    ("open", ELSEWHERE): "it failed, another broker is tried",
    ("open", "close"): "it leaves this broker",
    ("close", ELSEWHERE): "another broker serves it",
    ("close", "open"): "its next owner died",
}
"""What follows a call about a bundle at one broker, and why. A test lets each of these happen, and
sees that nothing else does."""

CALLS: Final = (
    (
        "`prepare`",
        "`prepare_ms`",
        "The broker refuses the bundle. A bundle that moves stays where it is.",
    ),
    (
        "`open`",
        "`open_ms`",
        "The bundle is free. The leader tries another broker, or this one again.",
    ),
    (
        "`close`",
        "`close_ms`",
        (
            "The next owner opens the bundle without a handover. After an exception,"
            " `handover_problem` has the reason."
        ),
    ),
    ("`discard`", "`close_ms`", "The broker logs it."),
    ("`fetch`", "10 s", "The next owner's `Ownership.fetch` raises `PeerError`."),
    ("`split_points`", "10 s", "The split is cancelled."),
    ("`split`, `merge`", "", "The broker logs it. The split or merge stands."),
    ("`load`", "", "The broker logs it once, and reports no load for the service."),
    ("`routes`", "", "The broker does not start: `CallerError`."),
)
"""What happens if a method of a service raises an exception or overruns its deadline."""


class Call(NamedTuple):
    """A function, class or member of the public API. `kind` is the word before its name, such as
    `async def`.
    """

    name: str
    called: Callable[..., object]
    kind: str

    @property
    def text(self) -> str:
        """Return its docstring, for a class with that of its constructor."""
        constructor = (
            vars(self.called).get("__init__")
            if self.is_made_by_programs and self.kind == "class"
            else None
        )
        texts = (
            each.__doc__ for each in (self.called, constructor) if each is not None and each.__doc__
        )
        return "\n\n".join(inspect.cleandoc(text) for text in texts)

    @property
    def is_made_by_programs(self) -> bool:
        """Return whether a program calls it, and not only gets objects of it."""
        return self.kind != "class" or (
            self.name not in MADE_BY_EQUIPOISE and "__init__" in vars(self.called)
        )


class _Plain(str):
    """A text that a signature shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def public_object(name: str) -> Any:  # noqa: ANN401 - a class or a function
    """Return what a public name of `equipoise` or `equipoise.pytest` stands for."""
    return getattr(plugin if name in plugin.__all__ else equipoise, name)


def is_hosted(name: str) -> bool:
    """Return whether a public name stands for a service that comes with Equipoise."""
    public = public_object(name)
    return (
        inspect.isclass(public)
        and issubclass(public, equipoise.Service)
        and public is not equipoise.Service
    )


def members(name: str) -> Iterator[Call]:
    """Yield the members of a public class that a program may use, in the order of the source, those
    of its bases last. Those that the worker calls are described once, for `Service`.
    """
    seen = set(vars(equipoise.Service)) if is_hosted(name) else set[str]()
    for base in (
        base for base in public_object(name).__mro__ if base.__module__.startswith("equipoise.")
    ):
        for member, value in vars(base).items():
            kind, function = "def", value
            if isinstance(value, property):
                kind, function = "property", value.fget
            elif isinstance(value, classmethod):
                kind, function = "classmethod", value.__func__
            elif inspect.iscoroutinefunction(value):
                kind = "async def"
            is_public = (
                not member.startswith("_")
                or (member in ("__call__", "__enter__", "__aenter__") and function.__doc__)
            ) and "`equipoise.pytest` only" not in (function.__doc__ or "")
            if is_public and member not in seen and inspect.isfunction(function):
                seen.add(member)
                yield Call(f"{name}.{member}", function, kind)


def calls() -> Iterator[Call]:
    """Yield each public name, and each member of each class, in the order of the page."""
    for name in (name for names in SECTIONS.values() for name in names):
        public = public_object(name)
        yield Call(name, public, "class" if inspect.isclass(public) else "def")
        yield from members(name) if inspect.isclass(public) else ()


def errors_of(call: Call) -> tuple[str, ...]:
    """Return the errors that the docstring of a call names as raised, in its order. `See ...`
    stands for those of another call.
    """
    referred = re.match(r"See `([\w.]+)`", call.text)
    if referred is not None:
        return errors_of(next(each for each in calls() if each.name == referred[1]))
    _, *after = re.split(r"\braises?\b", call.text, maxsplit=1, flags=re.IGNORECASE)
    named = dict.fromkeys(re.findall(r"`([A-Z]\w+)`", "".join(after)))
    return tuple(name for name in named if name not in equipoise.__all__)


def signature(call: Call) -> str:
    """Return how a call is written, as code, with annotations as the source has them."""
    whole = inspect.signature(call.called)
    shown = f"{call.kind} {call.name.rpartition('.')[2]}"
    if call.kind == "property":
        return f"`{shown}: {whole.return_annotation}`"
    made = (
        {
            each.name: each.default_factory()
            for each in fields(call.called)
            if each.default_factory is not MISSING
        }
        if is_dataclass(call.called)
        else {}
    )
    parameters = [
        each.replace(annotation=_Plain(each.annotation), default=made.get(name, each.default))
        for name, each in whole.parameters.items()
        if name not in ("self", "cls")
    ]
    returns = "" if call.kind == "class" else f" -> {whole.return_annotation}"
    text = f"{shown}{whole.replace(parameters=parameters, return_annotation=whole.empty)}{returns}"
    if len(text) > LINE_CHARACTERS_MAX:
        lines = [str(each) for each in parameters]
        first = next(
            (place for place, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None
        )
        if first is not None:
            lines.insert(first, "*")
        text = f"{shown}(\n" + "".join(f"    {line},\n" for line in lines) + f"){returns}"
    return f"```text\n{text}\n```" if "\n" in text else f"`{text}`"


def is_a_line(call: Call) -> bool:
    """Return whether a line in the section of its class describes a member: a property, or what
    another call describes.
    """
    return call.text.startswith("See `") or (call.kind == "property" and "\n\n" not in call.text)


def line_of(call: Call, text: str) -> str:
    """Return the line of a member, with the type of a property."""
    kind = f": {inspect.signature(call.called).return_annotation}" * (call.kind == "property")
    return f"* `{call.name.rpartition('.')[2]}{kind}`: {text.removeprefix('Return ')}"


def anchor(name: str) -> str:
    """Return the anchor of the section of a name."""
    return name.replace(".", "").lower()


def linked(text: str, here: str, names: frozenset[str]) -> str:
    """Return a text with links from the names of the API to their sections, except to the section
    that it is in.
    """

    def link(match: re.Match[str]) -> str:
        name = match[1]
        return f"[`{name}`](#{anchor(name)})" if name in names and name != here else match[0]

    return re.sub(r"`([A-Z][\w.]+)`", link, text)


def attributes_of(error: type[errors.EquipoiseError]) -> Iterator[str]:
    """Yield the parameters of an error's constructor that it keeps as attributes."""
    kept = error.__init__.__code__.co_names
    yield from (name for name in inspect.signature(error).parameters if name in kept)


def error_parts(names: frozenset[str]) -> Iterator[str]:
    """Yield the parts of the section of errors: what a caller of anything may have to handle."""
    yield "## Errors"
    yield linked(
        "Import them from `equipoise.errors`. The base of an error shows who must act: the program"
        " (`CallerError`), the operator (`OperatorError`), or nobody (`PeerError`): a later retry"
        " may work. `Bug` is a defect of Equipoise.",
        "",
        names,
    )
    for name in errors.__all__:
        error = getattr(errors, name)
        yield f"### `{name}`"
        yield linked(f"{inspect.getdoc(error)} Base: `{error.__base__.__name__}`.", name, names)
        if "__init__" in vars(error):
            attributes = ", ".join(f"`{attribute}`" for attribute in attributes_of(error))
            yield f"Attributes: {attributes}. {inspect.getdoc(error.__init__)}"


def python_page() -> str:
    """Return docs/reference/python.md."""
    names = frozenset({call.name for call in calls() if not is_a_line(call)} | set(errors.__all__))
    parts = [
        "# The Python API",
        WRITTEN_BY,
        (
            "Everything that a program imports is in `equipoise` and `equipoise.errors`, and what"
            " its tests need in `equipoise.pytest` ([how to](../how-to/test-a-service.md)); other"
            " modules change without notice. [Your first service](../tutorial/first-service.md)"
            " introduces the most important names. A time that ends in `_ms` is a whole number of"
            " milliseconds."
        ),
    ]
    public = {call.name: call for call in calls()}
    described: dict[Callable[..., object], str] = {}
    hosted = "The worker calls its methods of [`Service`](#service)."
    for section, its_names in SECTIONS.items():
        parts.append(f"## {section}")
        for name in its_names:
            parts.append(f"### `{name}`")
            if public[name].is_made_by_programs:
                parts.append(signature(public[name]))
            parts.append(linked(public[name].text, name, names))
            parts += service_parts() if name == "Service" else []
            parts += [hosted] if is_hosted(name) else []
            lines, sections = list[str](), list[str]()
            for call in members(name) if inspect.isclass(public[name].called) else ():
                other = described.setdefault(call.called, call.name)
                text = call.text if other == call.name else f"See `{other}`."
                if is_a_line(call) or other != call.name:
                    lines.append(line_of(call, linked(text, call.name, names)))
                else:
                    sections += [
                        f"#### `{call.name}`",
                        signature(call),
                        linked(text, call.name, names),
                    ]
            parts += ["\n".join(lines), *sections] if lines else sections
    return "\n\n".join((*parts, *error_parts(names))) + "\n"


def service_parts() -> Iterator[str]:
    """Yield what is known about all methods of a service together."""
    yield (
        "This is the life of a bundle at one broker, as its service sees it. "
        "[The life of a bundle](lifecycle.md) is the same from the side of the log."
    )
    yield mermaid(
        f"{before} --> {after}{f': {why}' if why else ''}" for (before, after), why in LIFE.items()
    )
    yield (
        "While a bundle is open, `split` and `merge` replace it by others, which are open at once."
        " A method may raise any exception. The broker logs it, and continues as if the method had"
        " overrun its deadline:"
    )
    yield table(("method", "deadline", "after an exception, or past the deadline"), CALLS)
