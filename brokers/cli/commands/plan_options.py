"""Define the options of commands that make a plan, and the files that plans are kept in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import with_values
from equipoise.brokers.cli.broker_conf import read_broker_conf
from equipoise.brokers.cli.options import BrokerConfOption, file, pairs
from equipoise.brokers.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of a command that makes a plan."""

    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Override a setting for this dry run. Repeatable.",
            show_default=False,
        ),
    ] = None
    broker_conf: BrokerConfOption = None
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Write the plan to this file, to apply it.",
            show_default=False,
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any of these options is given."""
        return bool(self.changes) or self.broker_conf is not None or self.output is not None

    def given(self, shedder: str | None) -> dict[str, str]:
        """Return the settings that `--set` and a shedder override."""
        return pairs("--set", self.changes or ()) | (
            {} if shedder is None else {"balancing.shedder": shedder}
        )

    def base(self, defaults: BalancingSettings) -> BalancingSettings:
        """Return the default settings with those of `--broker-conf`."""
        if self.broker_conf is None:
            return defaults
        # Only settings of balancing have a dot in their name.
        read = read_broker_conf(self.broker_conf).read.settings
        return with_values(defaults, {name: value for name, value in read.items() if "." in name})

    def write(self, text: str) -> None:
        """Write a plan to the file of `--output`, if there is one. Raise `InvalidRequest`."""
        if self.output is not None:
            try:
                self.output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise InvalidRequest(
                    what=f"the file {self.output}",
                    problem=f"the plan cannot be written to it: {error.strerror}",
                ) from error


_Plan = TypeVar("_Plan")


def plan_in(path: Path, read: Callable[[bytes], _Plan]) -> _Plan:
    """Return the plan in a file. Raise `InvalidRequest`."""
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(
            what=f"the plan {path}", problem=f"its file cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InvalidRequest(what=f"the plan {path}", problem=str(error)) from error
