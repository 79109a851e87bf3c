"""Derive the OpenAPI document of a broker's HTTP interface from its handlers."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, Protocol

from aiohttp import web
from pydantic import TypeAdapter

from equipoise.brokers.http import answers
from equipoise.brokers.http.admin.balancing import Balancing, Controls, Decisions
from equipoise.brokers.http.admin.brokers import Brokers, Handovers
from equipoise.brokers.http.admin.cluster_policies import Clusters, Policies
from equipoise.brokers.http.admin.namespaces import Grants, Namespaces, Tenants
from equipoise.brokers.http.admin.operating import Row
from equipoise.brokers.http.assignment import Assignment
from equipoise.brokers.http.bodies import flag_of, integer_of, parameter_of, texts_of
from equipoise.brokers.http.health import Health
from equipoise.brokers.http.lookup import Lookup
from equipoise.brokers.http.page.files import PageFiles
from equipoise.brokers.http.page.history import History
from equipoise.brokers.http.page.live import LiveOverview
from equipoise.brokers.http.page.plans import Plans
from equipoise.brokers.pulsar.admin.namespaces import NamespacesWithTopics
from equipoise.brokers.pulsar.admin.partitions import Partitions
from equipoise.brokers.pulsar.admin.policies import TopicPolicies
from equipoise.brokers.pulsar.admin.schemas import SchemaPaths
from equipoise.brokers.pulsar.admin.topics import Topics

Json = dict[str, Any]


class Paths(Protocol):
    """A class that serves a group of paths."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""


GROUPS: Final[Mapping[str, type[Paths]]] = {
    "Lookup": Lookup,
    "Clusters": Clusters,
    "Tenants": Tenants,
    "Namespaces, bundles": Namespaces,
    "Rights": Grants,
    "Policies": Policies,
    "Brokers": Brokers,
    "Handovers": Handovers,
    "Balancing": Balancing,
    "Controls": Controls,
    "Decisions": Decisions,
    "Topics": Topics,
    "Partitioned topics": Partitions,
    "Schemas": SchemaPaths,
    "Lists and backlogs of topics": NamespacesWithTopics,
    "Policies of topics": TopicPolicies,
    "Assignment": Assignment,
    "Health": Health,
    "Page": PageFiles,
    "Overview": LiveOverview,
    "History": History,
    "Plans": Plans,
}
"""Each group of paths, with the class that serves it."""

# aiohttp matches all lookups by one route; these are the paths that it takes.
_LOOKUP: Final = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final[Json] = {
    "type": "object",
    "required": ["reason", "error"],
    "properties": {
        "reason": {"type": "string", "description": "What happened, to what, and what to do."},
        "error": {
            "type": "string",
            "description": "The class of the error, or the reason of a rejection, for programs.",
        },
    },
}
_PATH_PARTS: Final[Mapping[str, str]] = {
    "bundle": "The range of the bundle, such as 0x40000000_0x80000000.",
    "cluster": "The id of this cluster.",
    "domain": "persistent or non-persistent.",
    "key": "A key of Pulsar's broker.conf.",
    "name": "The name of the policy or of the failure domain.",
    "role": "The name of a role, percent-encoded.",
    "topic": "The last part of the topic's name, percent-encoded.",
    "value": "Its value.",
}
_PARAMETERS: Final[Mapping[Callable[..., object], Json]] = {
    parameter_of: {"type": "string"},
    texts_of: {"type": "array", "items": {"type": "string"}},
    integer_of: {"type": "integer", "minimum": 0},
    flag_of: {"type": "boolean", "default": False},
}
_ANSWERS: Final[Mapping[Callable[..., object], tuple[str, Json]]] = {
    answers.json_answer: ("200", {"description": "The answer, as JSON."}),
    answers.text_answer: ("200", {"description": "The answer, as text."}),
    answers.done: ("204", {"description": "Done."}),
}
_WITH_BODY: Final = (web.Response, web.StreamResponse)
_REDIRECT: Final = ("307", {"description": "Another broker answers: the header Location names it."})


def operations(*, of_topics: bool) -> set[str]:
    """Return the method and path of each operation that only a broker with Pulsar's clients has, or
    of each other one.
    """
    topics = {tag for tag, group in GROUPS.items() if ".pulsar." in group.__module__}
    return {
        f"{method.upper()} {path}"
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if (operation["tags"][0] in topics) is of_topics
    }


def document() -> Json:
    """Return the OpenAPI document of all paths, in the order of `GROUPS`."""
    paths: dict[str, Json] = {}
    for tag, group in GROUPS.items():
        for route in group.routes(object.__new__(group)):
            for path in (
                (_LOOKUP, f"{_LOOKUP}/bundle") if group is Lookup else (_plain(route.path),)
            ):
                paths.setdefault(path, {})[route.method.lower()] = _operation(
                    tag, group, path, route
                )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HTTP as OpenAPI",
            "version": "v2",
            "description": (
                "The HTTP interface of a broker. Every broker answers for the whole cluster. The"
                " document [openapi.json](openapi.json) is derived from the handlers of a broker:"
                " use it to generate a client. The page [HTTP](http.md) has what differs from"
                " Pulsar, and all rules."
            ),
        },
        "tags": [{"name": tag} for tag in GROUPS],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM} | _models(),
            "responses": {
                "Problem": {
                    "description": "The request was refused, or not done.",
                    "content": {
                        "application/json": {"schema": {"$ref": _REF.format(model="Problem")}}
                    },
                }
            },
        },
    }


def _plain(path: str) -> str:
    """Return a path without the regular expressions of its parts."""
    return re.sub(r"\{(\w+):(?:[^{}]|\{[^{}]*\})*\}", r"{\1}", path)


def _operation(tag: str, group: type, path: str, route: web.RouteDef) -> Json:
    """Return the operation of one route."""
    name, text, used = _described(group, route)
    summary, _, description = text.partition("\n\n")
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        | ({"description": _PATH_PARTS[name]} if name in _PATH_PARTS else {})
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    queried = {name: _PARAMETERS[value] for value, name in used if value in _PARAMETERS and name}
    parameters += [
        {"name": name, "in": "query", "schema": schema} for name, schema in queried.items()
    ]
    responses: Json = {
        status: {"description": "The answer."}
        for value, status in used
        if value in _WITH_BODY and status
    }
    responses |= dict(_ANSWERS[value] for value, _ in used if value in _ANSWERS)
    responses |= (
        dict([_REDIRECT]) if any(value is web.HTTPTemporaryRedirect for value, _ in used) else {}
    )
    body = next((value for value, _ in used if isinstance(value, TypeAdapter)), None)
    operation: Json = {
        "tags": [tag],
        "operationId": f"{group.__name__}.{name}",
        "summary": " ".join(summary.split()),
    }
    operation |= {"description": " ".join(description.split())} if description else {}
    operation |= {"parameters": parameters} if parameters else {}
    operation |= (
        {"requestBody": {"content": {"application/json": {"schema": _body(body)}}}}
        if body is not None
        else {}
    )
    return operation | {
        "responses": (
            dict(sorted(responses.items()))
            | {"default": {"$ref": "#/components/responses/Problem"}}
        )
    }


def _described(
    group: type, route: web.RouteDef
) -> tuple[str, str, Sequence[tuple[Any, str | None]]]:
    """Return the name of an operation, what it does, and the values that it uses as `_used` does.
    A row says so itself.
    """
    row = route.handler.args[0] if isinstance(route.handler, partial) else None
    if isinstance(row, Row):
        return row.name, row.text, [(value, None) for value in (*row.answers, row.body) if value]
    handler = getattr(group, route.handler.__name__)
    used = [
        (value, text)
        for value, text in _used(group, handler)
        if callable(value) or isinstance(value, TypeAdapter)
    ]
    return handler.__name__, str(inspect.getdoc(handler)), used


def _body(adapter: TypeAdapter[Any]) -> Json:
    """Return the schema of a body, which is null where it may be left out."""
    schema = adapter.json_schema(ref_template=_REF)
    schema.pop("$defs", None)
    return next(
        (option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema
    )


def _models() -> Json:
    """Return the models of all bodies."""
    modules = {inspect.getmodule(group) for group in GROUPS.values()}
    adapters = {
        id(value): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, TypeAdapter)
    }
    rows = (row for group in GROUPS.values() for row in getattr(group, "rows", ()))
    adapters |= {id(row.body): row.body for row in rows if row.body is not None}
    found: Json = {}
    for adapter in adapters.values():
        found |= adapter.json_schema(ref_template=_REF).get("$defs", {})
    return {name: found[name] for name in sorted(found)}


@cache
def _nodes(function: Callable[..., object]) -> Sequence[ast.AST]:
    """Return the syntax of a function. Handlers share helpers, so each is parsed once."""
    return tuple(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))


def _used(
    group: type, function: Callable[..., object], seen: frozenset[str] = frozenset()
) -> Iterator[tuple[Any, str | None]]:
    """Yield the values of the module that a handler uses, also through its helpers, each with the
    text it is called with, if any.
    """
    names = vars(inspect.getmodule(function))
    for node in _nodes(function):
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Name) and called.id in names:
            value = names[called.id]
            if (
                inspect.isfunction(value)
                and value.__module__ == function.__module__
                and value.__name__ not in seen
            ):
                yield from _used(group, value, seen | {value.__name__})
            text = next(
                (
                    a.value
                    for a in getattr(node, "args", ())
                    if isinstance(a, ast.Constant) and isinstance(a.value, str)
                ),
                None,
            )
            yield value, text
        elif (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id == "web"
        ):
            keywords = {keyword.arg: keyword.value for keyword in getattr(node, "keywords", ())}
            status = keywords.get("status", ast.Constant(200))
            yield (
                getattr(web, called.attr),
                (
                    str(status.value)
                    if isinstance(node, ast.Call) and isinstance(status, ast.Constant)
                    else None
                ),
            )
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and node.attr not in seen
        ):
            method = inspect.getattr_static(group, node.attr, None)
            if inspect.isfunction(method):
                yield from _used(group, method, seen | {node.attr})
