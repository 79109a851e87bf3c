"""`equipoise rights`, and the permissions of `equipoise namespaces`: what is granted, listed and
refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.brokers.balancing.policies import tenant_document
from tests.channels.folding import NAMESPACE
from tests.channels.ruled import set_policy
from tests.unit.cli.fabricated import owned_channel, run, write

LIST = """\
role         may              where
on call/é    operate          the cluster
viewer       read             the cluster
tenant-boss  administer       tenant tenant
checkout     consume,produce  namespace tenant/ns
"""


@pytest.fixture
def log(tmp_path: Path) -> str:
    channel = owned_channel()
    set_policy(
        channel,
        "tenant/tenant",
        tenant_document(admin_roles=["tenant-boss"], allowed_clusters=["test"]),
    )
    return write(channel.entries, tmp_path)


def said(log: str, *arguments: str) -> tuple[str, str, int]:
    """What a command prints, and its exit code."""
    result = run(*arguments, log=log)
    return result.stdout, result.stderr, result.exit_code


def test_rights_are_granted_listed_and_revoked(log: str) -> None:
    out, _, code = said(log, "rights", "grant", "viewer", "admin")
    assert (0, True) == (code, out.endswith("role viewer has the right admin in the cluster\n"))
    for arguments in (
        ("rights", "grant", "viewer", "read"),
        ("rights", "grant", "on call/é", "operate"),
        (
            "namespaces",
            "grant-permission",
            NAMESPACE,
            "--role",
            "checkout",
            "--actions",
            "produce,consume",
        ),
    ):
        assert 0 == said(log, *arguments)[2]
    assert (LIST, "", 0) == said(log, "rights", "list")
    assert ("role      actions\ncheckout  consume,produce\n", "", 0) == said(
        log, "namespaces", "permissions", NAMESPACE
    )
    assert 0 == said(log, "namespaces", "revoke-permission", NAMESPACE, "--role", "checkout")[2]
    assert (f"no role may produce or consume in {NAMESPACE}\n", "", 0) == said(
        log, "namespaces", "permissions", NAMESPACE
    )
    assert 0 == said(log, "rights", "revoke", "viewer")[2]
    assert "viewer" not in said(log, "rights", "list")[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("rights", "revoke", "nobody"),
            (
                "role 'nobody' has no right in the cluster; list those that have one: equipoise"
                " rights list"
            ),
        ),
        (
            ("rights", "grant", " x", "read"),
            "the role cannot be used: ' x' must be 1 to 255 printable characters",
        ),
        (
            ("namespaces", "grant-permission", NAMESPACE, "--role", "x", "--actions", "sources"),
            "'sources' is none of consume, produce",
        ),
        (
            ("namespaces", "grant-permission", "a/b", "--role", "x", "--actions", "produce"),
            "there is no namespace 'a/b'",
        ),
    ],
)
def test_what_cannot_be_granted_is_refused_with_a_sentence(
    log: str, arguments: tuple[str, ...], problem: str
) -> None:
    out, error, code = said(log, *arguments)
    assert ("", 2, True) == (out, code, problem in error)
