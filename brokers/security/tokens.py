"""Make JSON web tokens (RFC 7519), and check them against keys, without IO: the time is an
argument.

The algorithms follow from the kind of the key, never from the token. So a token with `alg: none` is
forged, and so is one that is signed with the text of a public key as if that were a secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from equipoise.brokers.security.identity import (
    TOKEN,
    Credentials,
    Fault,
    Identity,
    Refusal,
    is_role,
)

SECRET_BYTES_MIN: Final = 32
"""The shortest secret key: as long as the hash of HS256 (RFC 7518, 3.2)."""

TOKEN_BYTES_MAX: Final = 8_000
"""The longest token that is checked: web servers take headers of 8 KiB. Those with a few claims
have less than 1 KiB."""

_TIME_MAX: Final = 2**53
_RSA_BITS_MIN: Final = 2_048

# The shortest secret of each algorithm: as many bytes as its hash has.
_BYTES_OF_SECRET: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_ALGORITHM_OF_CURVE: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_ALGORITHMS_OF_RSA: Final = ("RS256", "RS384", "RS512")
_PEM: Final = b"-----BEGIN"

# What this module checks itself, because the time is an argument, and what nobody needs.
_UNCHECKED: Final = dict.fromkeys(
    ("verify_exp", "verify_nbf", "verify_iat", "verify_sub", "verify_jti", "verify_iss"), False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key that makes or checks signatures, with the algorithms that it may be used with."""

    material: Any
    algorithms: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Key(material=***, algorithms={self.algorithms})"


def secret_key(data: bytes) -> Key:
    """Return the key of tokens that are signed with a secret. Raise ValueError with the problem."""
    if data.startswith(_PEM) or _public_key(data) is not None:
        raise ValueError("it is an asymmetric key; name a public key as token_public_key")
    if len(data) < SECRET_BYTES_MIN:
        raise ValueError(
            f"it has {len(data)} bytes, and a secret key needs at least {SECRET_BYTES_MIN}"
        )
    return Key(
        material=data,
        algorithms=tuple(name for name, least in _BYTES_OF_SECRET.items() if len(data) >= least),
    )


def public_key(data: bytes) -> Key:
    """Return the key of tokens that are signed with a private key, from its public key in DER or
    PEM. Raise ValueError with the problem.
    """
    return _asymmetric_key(_public_key(data), "public")


def private_key(data: bytes) -> Key:
    """Return the key that signs tokens, from a private key without a password, in DER or PEM. Raise
    ValueError with the problem.
    """
    load = load_pem_private_key if data.startswith(_PEM) else load_der_private_key
    try:
        key = load(data, password=None)
    except Exception:  # noqa: BLE001 - as in `_public_key`
        key = None
    return _asymmetric_key(key, "private")


def _asymmetric_key(key: object, kind: str) -> Key:
    if isinstance(key, RSAPublicKey | RSAPrivateKey):
        if key.key_size < _RSA_BITS_MIN:
            raise ValueError(
                f"it is an RSA key of {key.key_size} bits; at least {_RSA_BITS_MIN} are needed"
            )
        return Key(material=key, algorithms=_ALGORITHMS_OF_RSA)
    if (
        isinstance(key, EllipticCurvePublicKey | EllipticCurvePrivateKey)
        and key.curve.name in _ALGORITHM_OF_CURVE
    ):
        return Key(material=key, algorithms=(_ALGORITHM_OF_CURVE[key.curve.name],))
    raise ValueError(
        f"it is no {kind} key of RSA or of the curves P-256, P-384 and P-521, in DER or PEM"
    )


def _public_key(data: bytes) -> object | None:
    load = load_pem_public_key if data.startswith(_PEM) else load_der_public_key
    try:
        return load(data)
    # The library raises many types, some of them for kinds of keys that it does not support.
    except Exception:  # noqa: BLE001
        return None


def signed(key: Key, claims: Mapping[str, Any]) -> str:
    """Return a token with these claims, signed with a secret or private key by the first of its
    algorithms.
    """
    return jwt.encode(dict(claims), key.material, algorithm=key.algorithms[0])


def unchecked(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the header and the claims of a token whose signature is not checked. Raise ValueError
    if it cannot be read.
    """
    try:
        read = jwt.decode_complete(token, options={"verify_signature": False})
    except Exception:  # noqa: BLE001 - as in `TokenVerifier`
        raise ValueError("it is no JSON web token") from None
    return read["header"], read["payload"]


class TokenVerifier:
    """Checks tokens by one key or several. Each may have signed a token."""

    __slots__ = ("_audience", "_claim", "_keys", "_options")

    def __init__(
        self, keys: Sequence[Key], *, claim: str = "sub", audience: str | None = None
    ) -> None:
        """`keys` has at least one. `claim` holds the role. With `audience`, a token must name
        it.
        """
        self._keys = keys
        self._claim = claim
        self._audience = audience
        self._options: Any = {**_UNCHECKED, "verify_aud": audience is not None}

    def check(self, credentials: Credentials, now_s: float) -> Identity | Refusal:
        """Return who sent a token, or why it is refused. `now_s` is Unix time. Never raises: a
        client can send anything.
        """
        if not credentials.data:
            return Refusal(fault=Fault.MISSING, problem="there is no token; send one")
        if len(credentials.data) > TOKEN_BYTES_MAX:
            return _malformed(f"it has more than {TOKEN_BYTES_MAX} bytes")
        claims = self._claims(credentials.data)
        return claims if isinstance(claims, Refusal) else self._identity(claims, now_s)

    def _claims(self, token: bytes) -> Mapping[str, Any] | Refusal:
        """Return the claims of a token that one of the keys has signed."""
        claims = self._claims_by(self._keys[0], token)
        for key in self._keys[1:]:
            if isinstance(claims, Refusal) and claims.fault is Fault.FORGED:
                claims = self._claims_by(key, token)
        return claims

    def _claims_by(self, key: Key, token: bytes) -> Mapping[str, Any] | Refusal:
        """Return the claims of a token that `key` has signed."""
        try:
            return jwt.decode(
                token,
                key.material,
                algorithms=list(key.algorithms),
                audience=self._audience,
                options=self._options,
            )
        except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
            problem = (
                f"the token is not for the audience {self._audience!r}; use one that is made for"
                " this cluster"
            )
            return Refusal(fault=Fault.UNKNOWN, problem=problem)
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
            algorithms = ", ".join(
                dict.fromkeys(name for each in self._keys for name in each.algorithms)
            )
            problem = (
                f"the token is not signed with a key of this cluster ({algorithms}); ask for a"
                " new one"
            )
            return Refusal(fault=Fault.FORGED, problem=problem)
        # Damaged JSON, text or numbers raise many types; all of them mean the same.
        except Exception:  # noqa: BLE001
            return _malformed("it is no signed JSON web token")

    def _identity(self, claims: Mapping[str, Any], now_s: float) -> Identity | Refusal:
        expires_s, begins_s = claims.get("exp", math.inf), claims.get("nbf", -math.inf)
        if not _is_time(expires_s) or not _is_time(begins_s):
            return _malformed("its claim exp or nbf is not a number")
        if not begins_s <= now_s < expires_s:
            problem = (
                "the token has expired; ask for a new one"
                if now_s >= expires_s
                else "the token is not valid yet; check the clocks"
            )
            return Refusal(fault=Fault.EXPIRED, problem=problem)
        role = claims.get(self._claim)
        if isinstance(role, list) and role:  # As in Pulsar, the first of several counts.
            role = role[0]
        if not isinstance(role, str) or not is_role(role):
            return _malformed(f"its claim {self._claim!r} names no role")
        valid_ms = None if math.isinf(expires_s) else int((expires_s - now_s) * 1_000)
        return Identity(role=role, method=TOKEN, valid_ms=valid_ms)


def _is_time(value: object) -> bool:
    # The claims that are missing are infinite.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (abs(value) < _TIME_MAX or value in {math.inf, -math.inf})
    )


def _malformed(what: str) -> Refusal:
    return Refusal(
        fault=Fault.MALFORMED, problem=f"the token cannot be used: {what}; ask for a new one"
    )
