"""The commands that make and check keys and tokens."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.unit.cli.fabricated import run
from tests.unit.security.signing import SECRET_URL, token


def made(*arguments: str) -> str:
    """What a command prints that must succeed."""
    result = run("tokens", *arguments)
    assert (0, "") == (result.exit_code, result.stderr)
    return result.stdout.strip()


def test_a_secret_key_makes_tokens_that_it_accepts(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    made("create-secret-key", "--output", str(key))
    assert (64, 0o600) == (len(key.read_bytes()), stat.S_IMODE(key.stat().st_mode))
    file = tmp_path / "token"
    file.write_text("an older token", encoding="ascii")
    made(
        "create",
        "--subject",
        "orders",
        "--secret-key",
        f"file://{key}",
        "--expiry-time",
        "1d",
        "--output",
        str(file),
    )
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    shown = json.loads(made("validate", f"file://{file}", "--secret-key", str(key), "--json"))
    assert ("orders", True) == (shown["role"], 86_000 < shown["seconds_left"] <= 86_400)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512"])
def test_a_private_key_makes_tokens_that_the_public_key_accepts(
    tmp_path: Path, algorithm: str
) -> None:
    private, public = str(tmp_path / "private.key"), str(tmp_path / "public.key")
    made(
        "create-key-pair",
        "--output-private-key",
        private,
        "--output-public-key",
        public,
        "--signature-algorithm",
        algorithm,
    )
    assert (0o600, 0o644) == tuple(
        stat.S_IMODE(Path(file).stat().st_mode) for file in (private, public)
    )
    text = made(
        "create",
        "--subject",
        "orders",
        "--private-key",
        private,
        "--audience",
        "shop",
        "--expiry-time",
        "never",
    )
    assert {"role": "orders", "seconds_left": None} == json.loads(
        made("validate", text, "--public-key", public, "--audience", "shop", "--json")
    )
    shown = json.loads(made("show", text, "--json"))
    assert (algorithm, {"sub": "orders", "aud": "shop"}) == (
        shown["header"]["alg"],
        shown["claims"],
    )


def test_a_token_expires_unless_it_is_to_last_for_ever() -> None:
    shown = json.loads(
        made(
            "validate",
            made("create", "--subject", "me", "--secret-key", SECRET_URL),
            "--secret-key",
            SECRET_URL,
            "--json",
        )
    )
    assert 89 * 86_400 < shown["seconds_left"] <= 90 * 86_400


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    key = tmp_path / "secret.key"
    key.write_bytes(b"mine")
    result = run("tokens", "create-secret-key", "--output", str(key))
    assert (4, True, b"mine") == (result.exit_code, "exists" in result.stderr, key.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ("validate", token(key=b"x" * 32), "--secret-key", SECRET_URL),
            1,
            "refuse this token as forged",
        ),
        (("validate", token(exp=1), "--secret-key", SECRET_URL), 1, "refuse this token as expired"),
        (("validate", token()), 2, "exactly one of --secret-key and --public-key"),
        (("create", "--subject", "me", "--secret-key", "!"), 2, "--secret-key: it is neither"),
        (
            ("create", "--subject", "me", "--private-key", SECRET_URL),
            2,
            "--private-key: it is no private key",
        ),
        (("create", "--subject", "", "--secret-key", SECRET_URL), 2, "--subject takes a name"),
        (
            ("create", "--subject", "me", "--secret-key", SECRET_URL, "--expiry-time", "soon"),
            2,
            "'soon' is no duration above 0",
        ),
        (("show", "nonsense"), 2, "no JSON web token"),
    ],
)
def test_a_refusal_says_why(arguments: tuple[str, ...], code: int, told: str) -> None:
    result = run("tokens", *arguments)
    assert (code, True) == (result.exit_code, told in " ".join(result.output.split())), (
        result.output
    )
