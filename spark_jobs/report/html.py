"""Pieces of HTML, made of values that are escaped here and nowhere else.

May live here: pure functions from texts to `Html`. A text that is not `Html` is escaped, so nothing that a record says can become a
tag, whoever wrote it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NewType

Html = NewType("Html", str)

EMPTY: Final = Html("")


def text(value: str) -> Html:
    """A text as it reads. Characters that order others about (line breaks, the direction of writing) are told by their numbers."""
    shown = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in value)
    return Html(escape(shown))


def tag(name: str, *parts: Html, kind: str = "") -> Html:
    """An element of class `kind` around its parts."""
    opening = f'{name} class="{escape(kind)}"' if kind else name
    return Html(f"<{opening}>{''.join(parts)}</{name}>")


def joined(parts: Iterable[Html]) -> Html:
    """Parts one after the other."""
    return Html("\n".join(part for part in parts if part))


def paragraph(value: str, *, kind: str = "") -> Html:
    """A paragraph of text."""
    return tag("p", text(value), kind=kind)


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, kinds: Sequence[str]) -> Html:
    """A table. `kinds` says of each column what it holds: `number`, `time`, `name` or `text`; it is a class of the style sheet."""
    head = tag("tr", *(Html(f'<th scope="col" class="{kind}">{text(name)}</th>') for name, kind in zip(heads, kinds, strict=True)))
    body = [tag("tr", *(tag("td", text(cell), kind=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows]
    return tag("div", tag("table", tag("caption", text(caption)), tag("thead", head), tag("tbody", *body)), kind="wide")


def picture(light: bytes, dark: bytes, *, described: str, caption: str) -> Html:
    """A picture that lies within the page, in the one or the other colours; `described` is for whoever does not see it."""
    sources = [f"data:image/png;base64,{b64encode(data).decode()}" for data in (light, dark)]
    return Html(
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{sources[1]}">'
        f'<img src="{sources[0]}" alt="{escape(described)}"></picture><figcaption>{text(caption)}</figcaption></figure>'
    )


def section(anchor: str, title: str, *parts: Html, kind: str = "") -> Html:
    """A section of the page that can be pointed at."""
    opening = f' class="{escape(kind)}"' if kind else ""
    return Html(f'<section id="{escape(anchor)}"{opening}><h2>{text(title)}</h2>\n{joined(parts)}\n</section>')
