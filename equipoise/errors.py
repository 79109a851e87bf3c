"""The errors that Equipoise raises on purpose, grouped by who must act: the caller, the operator,
or nobody (retry later).

This module only re-exports names.
"""

from equipoise.brokers.errors import (
    BrokerUnreachable,
    InvalidConfig,
    Rejected,
    UnknownNamespace,
)
from equipoise.brokers.runtime.service import OwnershipLost, WorkerEnded
from equipoise.brokers.sharded.saving import StaleToken
from equipoise.channel.core.errors import (
    Bug,
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    InvalidName,
    LogUnavailable,
    NotFound,
    OperatorError,
    OutcomeUnknown,
    Overloaded,
    PeerError,
)

__all__ = [
    "BrokerUnreachable",
    "Bug",
    "CallerError",
    "DeadlineExceeded",
    "EquipoiseError",
    "InvalidConfig",
    "InvalidName",
    "LogUnavailable",
    "NotFound",
    "OperatorError",
    "OutcomeUnknown",
    "Overloaded",
    "OwnershipLost",
    "PeerError",
    "Rejected",
    "StaleToken",
    "UnknownNamespace",
    "WorkerEnded",
]
