"""Give commands the options that many of them share, from one declaration.

A set of options is a dataclass: each field is an option, and the methods do what commands do with
them. A command names a set as the type of a parameter, and gets it filled.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Final, get_type_hints

import typer

from equipoise.brokers.cli.outcome import JSON_FLAG

_LAST: Final = ("admin_name", "timeout", "as_json")
"""The options that end each command's list, in this order. All others stand in the place of their
set."""

_ErrorsAsJson: Final = Annotated[bool, typer.Option(JSON_FLAG, help="Print errors as JSON.")]


def fill_options(app: typer.Typer) -> typer.Typer:
    """Give each command of a group the options of its sets, and `--json`, and return the group."""
    for command in app.registered_commands:
        assert command.callback is not None, "it was registered with its function"
        command.callback = with_options(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None, "it was registered with its commands"
        fill_options(group.typer_instance)
    return app


def with_options(command: Callable[..., object]) -> Callable[..., object]:
    """Return a command with the options of its sets in place of the sets, and with `--json`.

    A command without the set `Output` prints no results, so `--json` is about its errors alone.
    """
    own = inspect.signature(command, eval_str=True)
    sets: dict[str, type[Any]] = {
        name: each.annotation
        for name, each in own.parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, each in own.parameters.items():
        parameters += _options_of(sets[name]) if name in sets else [each]
    has_json = any(each.name == "as_json" for each in parameters)
    if not has_json:
        parameters.append(_parameter("as_json", _ErrorsAsJson, default=False))

    @functools.wraps(command)
    def run(**given: object) -> object:
        if not has_json:
            del given["as_json"]  # `outcome` has read it from the command line.
        filled = {
            name: kind(**{field.name: given.pop(field.name) for field in _fields(kind)})
            for name, kind in sets.items()
        }
        return command(**given, **filled)

    first = [each for each in parameters if each.name not in _LAST]
    last = sorted(
        (each for each in parameters if each.name in _LAST), key=lambda each: _LAST.index(each.name)
    )
    run.__signature__ = own.replace(parameters=[*first, *last])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        _parameter(
            field.name,
            hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in _fields(kind)
    ]


def _fields(kind: type[Any]) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init]


def _parameter(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
