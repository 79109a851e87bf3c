"""Answer for features of Pulsar that this server does not have: a question with Pulsar's default, a change with a refusal that says why.

Without these answers, Pulsar's tools would print that a path is unknown, and nobody would learn the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

from aiohttp import web

from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.errors import problem_answer

NOTHING: Final = object()
"""In place of a default: even the question is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature that this server does not have.

    `methods` are those of Pulsar at `path`, separated by spaces. `why` is one sentence for the operator. `default` is the JSON that answers
    a GET; None becomes 204.
    """

    methods: str
    path: str
    why: str
    default: object = NOTHING


FEATURES: Final = (
    Feature(
        methods="GET POST DELETE",
        path="/admin/v2/namespaces/{tenant}/{namespace}/retention",
        why="this server stores no messages, so there is nothing to retain; a consumer gets what is published while it is connected",
        default=None,
    ),
    Feature(
        methods="GET POST",
        path="/admin/v2/clusters/{cluster}/migrate",
        why="a cluster cannot be migrated to another one; start new clients with the address of the other cluster",
        default={"migrated": False, "migratedClusterUrl": None},
    ),
    Feature(
        methods="GET",
        path="/admin/v2/brokers/backlog-quota-check",
        why="this server stores no messages, so no topic has a backlog",
        default=None,
    ),
    Feature(
        methods="GET",
        path="/admin/v2/broker-stats/mbeans",
        why="this server is no Java program, so it has no MBeans; use broker-stats monitoring-metrics",
    ),
    Feature(
        methods="GET",
        path="/admin/v2/broker-stats/allocator-stats/{allocator}",
        why="this server is no Java program, so it has no allocators; use broker-stats monitoring-metrics",
    ),
)
"""The features that are absent in every cluster."""


class Absent:
    """The paths of features that this server does not have. Add them after all paths that it has."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self._features = features

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return [
            web.route(method, feature.path, partial(self.answer, feature))
            for feature in self._features
            for method in feature.methods.split()
        ]

    async def answer(self, feature: Feature, request: web.Request) -> web.Response:
        """Return the default to a GET, if there is one. Otherwise refuse with 405, as Pulsar does where it lacks a feature."""
        if request.method != "GET" or feature.default is NOTHING:
            return problem_answer(request, HTTPStatus.METHOD_NOT_ALLOWED, feature.why, "NotSupported")
        return done() if feature.default is None else json_answer(feature.default)
