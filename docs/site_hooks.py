"""Add to the pages of the site, while `make docs` builds it: state diagrams, so that pages load no
script for them, the tables of all benchmark results, and links between the names of the API.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import mermaidx
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page


def diagram(source: str, *_: object, **__: object) -> str:
    """Return the picture of a diagram as HTML."""
    svg = base64.b64encode(mermaidx.render(source).svg().encode()).decode()
    return (
        f'<p class="diagram"><img alt="{html.escape(source)}"'
        f' src="data:image/svg+xml;base64,{svg}"></p>'
    )


def benchmarks(results: Path) -> Iterator[str]:
    """Yield the lines of the tables of benchmark results, one table for each group."""
    for title, group in json.loads(results.read_text(encoding="utf-8"))["groups"].items():
        yield f"## {title}\n"
        yield group.get("note", "")
        yield "\n| benchmark | case | target | measured |\n|---|---|---|---|"
        before = ""
        for each in group["results"]:
            unit = each.get("unit", "")
            measured = ", ".join(
                f"{name.replace('_', ' ')} {value:,}" for name, value in each["figures"].items()
            )
            shown = f"{measured} {unit}".strip()
            shown = f"**{shown}**" if each.get("missed") else shown
            name = "" if each["benchmark"] == before else f"`{each['benchmark']}`"
            yield f"| {name} | {each['case']} | {each.get('target', '')} | {shown} |"
            before = each["benchmark"]
        yield ""


def peers(results: Path) -> Iterator[str]:
    """Yield the lines of the table of peers: a row for each system and event."""
    yield "| system | event | without an owner | stale, lost | busiest | changes | a call | CPU |"
    yield "|---|---|---|---|---|---|---|---|"
    for system in json.loads(results.read_text(encoding="utf-8")).values():
        name = f"{system['title']}, {system['lines']} lines"
        for event, each in system["events"].items():
            gaps, calls = each["without_owner_ms"], each["call_ms"]
            yield (
                f"| {name} | {event} | {gaps['p50'] / 1e3:.2f}, {gaps['longest'] / 1e3:.2f} s |"
                f" {each['stale_accepted']}, {each['lost']} | {each['shares_of_calls'][0]:.0%} |"
                f" {each['changes']} | {calls['p50']:,.1f}, {calls['p99']:,.1f} ms |"
                f" {each['cpu_s_per_minute']:.0f} s |"
            )
            name = ""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Return the text of a page, with tables in place of `[BENCHMARKS(FILE)]` and `[PEERS]`, and
    what `python -m tests.docs.reference_pages` has written for the page in place of `[REFERENCE]`.
    """
    docs = Path(config["docs_dir"])

    def tables(match: re.Match[str]) -> str:
        if match[0] == "[REFERENCE]":
            return (docs.parent / "build" / page.file.src_uri).read_text(encoding="utf-8")
        if match[1]:
            return "\n".join(benchmarks(docs / "reference" / match[1]))
        return "\n".join(peers(docs.parent / "tests" / "benchmarks" / "peers" / "results.json"))

    places = r"^\[(?:BENCHMARKS\((.+)\)|PEERS|REFERENCE)\]$"
    return re.sub(places, tables, markdown, flags=re.MULTILINE)


def on_page_content(content: str, **_: object) -> str:
    """Return the HTML of a page, with links from the names of the API to what the page says of
    them.
    """
    names = {
        identifier.removeprefix("errors.").removeprefix("pytest."): f"equipoise.{identifier}"
        for identifier in re.findall(r'id="equipoise\.([\w.]+)"', content)
    }
    return re.sub(
        r"(?<!\">)<code>([A-Z][\w.]+)</code>",
        lambda code: f'<a href="#{names[code[1]]}">{code[0]}</a>' if code[1] in names else code[0],
        content,
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Return the configuration, with `diagram` for each fenced block of the language mermaid."""
    config["mdx_configs"]["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "diagram", "format": diagram}]
    }
    return config
