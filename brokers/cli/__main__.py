"""`python -m brokers.cli`: the command line where no console script is on the path, as for the brokers of a local cluster."""

from __future__ import annotations

from brokers.cli.main import app

app(prog_name="equipoise")
