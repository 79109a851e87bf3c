"""Build HTML from text, and define its style sheet.

Only this module escapes. Every text that is not `Html` is escaped, so no record can inject a tag.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NewType

Html = NewType("Html", str)

EMPTY: Final = Html("")

STYLE: Final = """
:root { color-scheme: light dark; --paper: #f6f8fa; --card: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d5dae0;
  --accent: #0072b2; --alarm: #b3261e; --alarm-paper: #fdeceb; --warning: #8a5300; --warning-paper: #fff4e0; --good: #00694d;
  --good-paper: #e6f5f0; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --card: #161b22; --ink: #e6edf3; --soft: #9aa5b1; --line: #3a424c;
  --accent: #6cb6e8; --alarm: #ff8a80; --alarm-paper: #3a1a1b; --warning: #f0b75a; --warning-paper: #35270f; --good: #5fd0a9;
  --good-paper: #10302a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "Liberation Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 18px 0 4px; }
p { margin: 4px 0 10px; max-width: 95ch; }
.soft, figcaption { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; margin: 16px 0; }
nav { margin: 12px 0 0; display: flex; flex-wrap: wrap; gap: 4px 16px; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.verdict { border-left: 6px solid var(--good); background: var(--good-paper); }
.verdict.alarm { border-left-color: var(--alarm); background: var(--alarm-paper); }
.verdict.warning, .verdict.unknown { border-left-color: var(--warning); background: var(--warning-paper); }
.verdict h2 { font-size: 21px; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); gap: 10px; margin: 16px 0; padding: 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; }
.cards dt { color: var(--soft); font-size: 13px; }
.cards dd { margin: 0; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.25; }
.cards dd small { display: block; font-size: 12.5px; font-weight: 400; color: var(--soft); line-height: 1.35; }
figure { margin: 8px 0 4px; }
figure img { width: 100%; height: auto; display: block; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
caption { text-align: left; font-weight: 650; padding: 10px 0 4px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.text { min-width: 18ch; }
td.name { min-width: 24ch; }
td.name, code { font-family: "Liberation Mono", ui-monospace, monospace; font-size: 12.5px; overflow-wrap: anywhere; }
ol.findings { list-style: none; margin: 8px 0 0; padding: 0; }
ol.findings li { border-top: 1px solid var(--line); padding: 10px 0; }
.tag { display: inline-block; border-radius: 5px; padding: 0 7px; font-size: 12.5px; font-weight: 650; border: 1px solid currentColor; }
.tag.alarm { color: var(--alarm); } .tag.warning { color: var(--warning); } .tag.notice { color: var(--soft); }
.command { display: block; background: var(--paper); border: 1px solid var(--line); border-radius: 6px; padding: 5px 9px; margin: 5px 0 0; }
details { margin: 6px 0; } summary { cursor: pointer; color: var(--accent); }
.empty { color: var(--soft); font-style: italic; margin: 6px 0; }
@media (max-width: 860px) { .cards { grid-template-columns: repeat(2, 1fr); } }
@media (max-width: 560px) { main { padding: 14px 10px 40px; } }
@media print { body { background: none; } section, .cards div { break-inside: avoid; } nav { display: none; } }
"""


def text(value: str) -> Html:
    """Return the escaped text. Control characters, line breaks and direction marks are shown as their code points."""
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


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, kinds: Sequence[str]) -> Html:
    """Return a table. `kinds` gives each column's style sheet class: `number`, `time`, `name` or `text`."""
    head = tag("tr", *(Html(f'<th scope="col" class="{kind}">{text(name)}</th>') for name, kind in zip(heads, kinds, strict=True)))
    body = [tag("tr", *(tag("td", text(cell), kind=kind) for cell, kind in zip(row, kinds, strict=True))) for row in rows]
    return tag("div", tag("table", tag("caption", text(caption)), tag("thead", head), tag("tbody", *body)), kind="wide")


def picture(light: bytes, dark: bytes, *, described: str, caption: str) -> Html:
    """Return an embedded picture with a light and a dark version. `described` is its alternative text."""
    sources = [f"data:image/png;base64,{b64encode(data).decode()}" for data in (light, dark)]
    return Html(
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{sources[1]}">'
        f'<img src="{sources[0]}" alt="{escape(described)}"></picture><figcaption>{text(caption)}</figcaption></figure>'
    )


def section(anchor: str, title: str, *parts: Html, kind: str = "") -> Html:
    """Return a section of the page with an anchor."""
    opening = f' class="{escape(kind)}"' if kind else ""
    return Html(f'<section id="{escape(anchor)}"{opening}><h2>{text(title)}</h2>\n{joined(parts)}\n</section>')
