"""Keys and tokens for tests of authentication."""

from __future__ import annotations

import base64
from typing import Any

import jwt

from tests.planted import planted

SECRET = planted("a secret of a test, 32 bytes long, and some more for HS512: 64 in all").encode()
SECRET_URL = f"data:;base64,{planted(base64.b64encode(SECRET).decode())}"


def token(role: str = "me", *, key: bytes = SECRET, **claims: object) -> str:
    """A token that is signed with a secret. It never expires, unless `exp` is given."""
    text = jwt.encode({"sub": role, **claims}, key, algorithm="HS256")
    # The signature: also of a token that is cut, or sent with a prefix.
    planted(text.rpartition(".")[2])
    return text


def bearer(text: str) -> dict[str, str]:
    """The header that sends a token."""
    return {"Authorization": f"Bearer {text}"}


def basic(user: str, password: str) -> dict[str, str]:
    """The header that sends a user and a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


USERS = "# users\nme:$2y$04$l8D0wG5qCaxDu2CpBJmfnuiE1gU6x4eO0nX8jDw3zKwJptUd1SBsq\n"
"""A password file. The password of `me` is `secret`."""

SETTINGS: dict[str, Any] = {
    "authentication": True,
    "token_secret_key": SECRET_URL,
    "broker_token": token("broker"),
}
"""The settings of a broker that lets in only the bearers of such tokens."""

PASSWORDS: dict[str, Any] = SETTINGS | {
    "basic_passwords": f"data:;base64,{base64.b64encode(USERS.encode()).decode()}"
}
"""The same, and `me` may send a password."""
