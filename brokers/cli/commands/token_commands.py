"""Define `equipoise tokens`: make and check keys and tokens for authentication, as `pulsar tokens`
does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.moments import duration
from equipoise.brokers.cli.options import file
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import Output
from equipoise.brokers.security.gate import read_key
from equipoise.brokers.security.identity import TOKEN, Credentials, Refusal
from equipoise.brokers.security.own_token import TOKEN_VARIABLE, OwnToken
from equipoise.channel.core.errors import CallerError, missing_extra

try:
    from equipoise.brokers.security import new_keys, tokens
except ModuleNotFoundError:
    raise missing_extra(what="equipoise tokens", extra="auth") from None

app = group("Make and check keys and tokens for authentication.")


class Algorithm(StrEnum):
    """The algorithms that use a key pair."""

    RS256 = "RS256"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"


_NEVER: Final = "never"


def _seconds(text: str) -> int:
    return 0 if text == _NEVER else duration(text) // 1_000


_FORMS: Final = "file:///PATH, data:;base64,TEXT, a path, or base64 without a slash."
SecretKeyOption = Annotated[
    str | None, typer.Option(metavar="KEY", help=f"The secret key: {_FORMS}", show_default=False)
]
PrivateKeyOption = Annotated[
    str | None, typer.Option(metavar="KEY", help=f"The private key: {_FORMS}", show_default=False)
]
PublicKeyOption = Annotated[
    str | None, typer.Option(metavar="KEY", help=f"The public key: {_FORMS}", show_default=False)
]
TokenArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOKEN",
        envvar=TOKEN_VARIABLE,
        help="The token, or file:///PATH of it.",
        show_default=False,
    ),
]


@app.command()
def create_secret_key(
    *,
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE", parser=file, help="Write the key to this file, for its owner only."
        ),
    ],
) -> None:
    """Make a secret key, with which brokers check tokens and you make them."""
    new_keys.write_secret_key(output)


@app.command()
def create_key_pair(
    *,
    output_private_key: Annotated[
        Path,
        typer.Option(
            metavar="FILE", parser=file, help="Write the private key here, for its owner only."
        ),
    ],
    output_public_key: Annotated[
        Path,
        typer.Option(metavar="FILE", parser=file, help="Write the public key here, for brokers."),
    ],
    signature_algorithm: Annotated[
        Algorithm, typer.Option(help="The algorithm that signs tokens.")
    ] = Algorithm.RS256,
) -> None:
    """Make a key pair: the private key makes tokens, and brokers check them with the public key."""
    new_keys.write_key_pair(output_private_key, output_public_key, signature_algorithm.value)


@app.command()
def create(
    *,
    subject: Annotated[str, typer.Option(metavar="ROLE", help="The role of the token's bearer.")],
    secret_key: SecretKeyOption = None,
    private_key: PrivateKeyOption = None,
    expiry_time: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            parser=_seconds,
            help="When the token expires: 30d (s, m, h, d, w, y), or never.",
        ),
    ] = "90d",  # type: ignore[assignment]  # the parser takes it
    audience: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The audience of the token.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Write the token to this file, for its owner only, instead.",
            show_default=False,
        ),
    ] = None,
    results: Output,
) -> None:
    """Make a token and print it. Give exactly one of the keys."""
    key = _one_of(
        ("--secret-key", secret_key, tokens.secret_key),
        ("--private-key", private_key, tokens.private_key),
    )
    if not subject or not subject.isprintable():
        raise typer.BadParameter("--subject takes a name of printable characters")
    claims: dict[str, object] = {"sub": subject}
    if expiry_time:
        claims["exp"] = int(time.time()) + expiry_time
    if audience is not None:
        claims["aud"] = audience
    token = tokens.signed(key, claims)
    if output is None:
        results.print_fact(token, {"token": token})
    else:
        new_keys.write_token(output, token)


@app.command()
def show(token: TokenArgument, *, results: Output) -> None:
    """Show the header and the claims of a token. Its signature is not checked."""
    try:
        header, claims = tokens.unchecked(OwnToken(token).current() or "")
    except ValueError as error:
        raise CallerError(f"the token cannot be shown: {error}; give a whole token") from None
    results.print_document({"header": header, "claims": claims})


@app.command()
def validate(
    token: TokenArgument,
    *,
    secret_key: SecretKeyOption = None,
    public_key: PublicKeyOption = None,
    claim: Annotated[
        str, typer.Option(metavar="NAME", help="The claim that names the role.")
    ] = "sub",
    audience: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The audience that the token must name.", show_default=False
        ),
    ] = None,
    results: Output,
) -> None:
    """Check a token as a broker does, and print its role. Exit code 1: a broker would refuse it.
    Give exactly one of the keys.
    """
    key = _one_of(
        ("--secret-key", secret_key, tokens.secret_key),
        ("--public-key", public_key, tokens.public_key),
    )
    credentials = Credentials(
        method=TOKEN, data=(OwnToken(token).current() or "").encode(errors="replace")
    )
    checked = tokens.TokenVerifier([key], claim=claim, audience=audience).check(
        credentials, time.time()
    )
    if isinstance(checked, Refusal):
        sentence = f"a broker would refuse this token as {checked.fault.value}: {checked.problem}"
        results.print_fact(
            sentence, {"refused_as": checked.fault.value, "problem": checked.problem}
        )
        raise typer.Exit(ExitCode.REFUSED)
    valid_s = None if checked.valid_ms is None else checked.valid_ms // 1_000
    results.print_document({"role": checked.role, "seconds_left": valid_s})


def _one_of(*choices: tuple[str, str | None, Callable[[bytes], tokens.Key]]) -> tokens.Key:
    """Return the one key that is given, of options with their values and parsers. Raise
    `typer.BadParameter`.
    """
    given = [(option, value, parse) for option, value, parse in choices if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            f"give exactly one of {' and '.join(option for option, _, _ in choices)}"
        )
    ((option, value, parse),) = given
    try:
        return parse(read_key(value))
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None
