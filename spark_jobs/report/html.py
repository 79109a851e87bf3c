"""Build HTML from text. The frame of a page and its style sheet are in `page.html`.

Only this module escapes. Every text that is not `Html` is escaped, so no record can inject a tag.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, NewType

Html = NewType("Html", str)

EMPTY: Final = Html("")


def text(value: str) -> Html:
    """Return the escaped text. Control characters, line breaks and direction marks are shown as
    their code points.
    """
    shown = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in value)
    return Html(escape(shown))


def tag(name: str, *parts: Html, kind: str = "") -> Html:
    """Return an element of class `kind` with these parts."""
    opening = f'{name} class="{escape(kind)}"' if kind else name
    return Html(f"<{opening}>{''.join(parts)}</{name}>")


def joined(parts: Iterable[Html]) -> Html:
    """Join the non-empty parts, one per line."""
    return Html("\n".join(part for part in parts if part))


def paragraph(value: str, *, kind: str = "") -> Html:
    """Return a paragraph of text."""
    return tag("p", text(value), kind=kind)


def table(caption: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> Html:
    """Return a table. `columns` maps each head to its style sheet class: `number`, `time`, `name`
    or `text`.
    """
    head = tag(
        "tr",
        *(
            Html(f'<th scope="col" class="{kind}">{text(name)}</th>')
            for name, kind in columns.items()
        ),
    )
    body = [
        tag(
            "tr",
            *(
                tag("td", text(cell), kind=kind)
                for cell, kind in zip(row, columns.values(), strict=True)
            ),
        )
        for row in rows
    ]
    return tag(
        "div",
        tag("table", tag("caption", text(caption)), tag("thead", head), tag("tbody", *body)),
        kind="wide",
    )


def picture(light: bytes, dark: bytes, *, described: str, caption: str) -> Html:
    """Return an embedded picture with a light and a dark version. `described` is its alternative
    text.
    """
    sources = [f"data:image/png;base64,{b64encode(data).decode()}" for data in (light, dark)]
    return Html(
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{sources[1]}"><img'
        f' src="{sources[0]}"'
        f' alt="{escape(described)}"></picture><figcaption>{text(caption)}</figcaption></figure>'
    )


def section(anchor: str, title: str, *parts: Html, kind: str = "") -> Html:
    """Return a section of the page with an anchor."""
    opening = f' class="{escape(kind)}"' if kind else ""
    return Html(
        "<section"
        f' id="{escape(anchor)}"{opening}><h2>{text(title)}</h2>\n{joined(parts)}\n</section>'
    )
