"""Every error that Equipoise raises on purpose, by who must act: the caller, the operator, or nobody but time.

May live here: names that live in other modules.
"""

from brokers.service import OwnershipLost
from channel.errors import (
    Bug,
    CallerError,
    DeadlineExceeded,
    EquipoiseError,
    LogUnavailable,
    OperatorError,
    OutcomeUnknown,
    Overloaded,
    PeerError,
    Rejected,
    UnknownNamespace,
)

__all__ = [
    "Bug",
    "CallerError",
    "DeadlineExceeded",
    "EquipoiseError",
    "LogUnavailable",
    "OperatorError",
    "OutcomeUnknown",
    "Overloaded",
    "OwnershipLost",
    "PeerError",
    "Rejected",
    "UnknownNamespace",
]
