"""What Pulsar's tools send: a field that is null is one that is not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from equipoise.brokers.balancing.topic_policies import (
    DispatchRate,
    PublishRate,
    PulsarModel,
    TopicCreation,
)
from equipoise.brokers.http.bodies import (
    Bundles,
    FailOver,
    FailOverLimits,
    FailureDomainBody,
    IsolationBody,
    NamespaceBody,
    TenantBody,
)
from equipoise.brokers.pulsar.admin.partitions import PartitionsBody
from equipoise.brokers.pulsar.admin.schemas import SchemaBody

# The fields that each body must have.
BODIES: Final[Mapping[type[PulsarModel], Mapping[str, object]]] = {
    Bundles: {},
    DispatchRate: {},
    FailOver: {},
    FailOverLimits: {},
    FailureDomainBody: {},
    IsolationBody: {"namespaces": [], "primary": []},
    NamespaceBody: {},
    PartitionsBody: {"partitions": 1},
    PublishRate: {},
    SchemaBody: {"type": "STRING"},
    TenantBody: {},
    TopicCreation: {"allowAutoTopicCreation": True},
}


def test_every_body_of_pulsar_is_here() -> None:
    assert set(PulsarModel.__subclasses__()) == BODIES.keys()


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_null_is_absent(body: type[PulsarModel]) -> None:
    given: dict[str, Any] = {
        field.alias or name: None for name, field in body.model_fields.items()
    } | dict(BODIES[body])
    assert body.model_validate(BODIES[body]) == body.model_validate(given)
