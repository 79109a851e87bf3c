"""The checker for each kind of subject."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from equipoise.spark_jobs.rules.broker import BrokerChecker
from equipoise.spark_jobs.rules.bundle import BundleChecker
from equipoise.spark_jobs.rules.facts import SubjectKind
from equipoise.spark_jobs.rules.log import LogChecker
from equipoise.spark_jobs.rules.memory import Checker
from equipoise.spark_jobs.rules.namespace import NamespaceChecker

CHECKERS: Final[Mapping[SubjectKind, Checker]] = {
    "broker": BrokerChecker(),
    "bundle": BundleChecker(),
    "log": LogChecker(),
    "namespace": NamespaceChecker(),
}
