"""Make keys for tokens, and write keys and tokens to files."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from equipoise.channel.core.errors import OperatorError

_SECRET_BYTES: Final = 64  # For HS512, and so for its smaller siblings.
_OWNER_ONLY: Final = 0o600
_FOR_ALL: Final = 0o644

_PAIRS: Final[Mapping[str, Callable[[], rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey]]] = {
    "RS256": lambda: rsa.generate_private_key(public_exponent=65_537, key_size=2_048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
}


def write_secret_key(file: Path) -> None:
    """Write a new secret key. Raise `OperatorError` if that fails, or the file exists."""
    _write(file, secrets.token_bytes(_SECRET_BYTES), mode=_OWNER_ONLY)


def write_key_pair(private: Path, public: Path, algorithm: str) -> None:
    """Write a new key pair in DER, as `pulsar tokens` does. Raise `OperatorError` if that fails, or
    a file exists.
    """
    key = _PAIRS[algorithm]()
    _write(
        private,
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        mode=_OWNER_ONLY,
    )
    _write(
        public,
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        mode=_FOR_ALL,
    )


def write_token(file: Path, token: str) -> None:
    """Write a token for its owner only. A file of this name is replaced in one step. Raise
    `OperatorError` if that fails.
    """
    try:
        descriptor, written = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:64]}-")
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(token)
        Path(written).replace(file)
    except (OSError, ValueError) as error:
        raise _unwritable(file, error) from error


def _write(file: Path, data: bytes, *, mode: int) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
    except FileExistsError:
        raise OperatorError(
            f"the key file {file} exists, and tokens may depend on it; name another file"
        ) from None
    except (OSError, ValueError) as error:
        raise _unwritable(file, error) from error


def _unwritable(file: Path, error: OSError | ValueError) -> OperatorError:
    """Return the error for a file. A ValueError means that no path can have its name."""
    problem = error.strerror if isinstance(error, OSError) else "it is no name of a file"
    return OperatorError(f"the file {file} cannot be written: {problem}; mend that, and try again")
