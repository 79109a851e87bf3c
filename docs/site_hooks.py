"""Draw state diagrams while `make docs` builds the site, so that its pages load no script for
them.
"""

from __future__ import annotations

import base64
import html

import mermaidx
from mkdocs.config.defaults import MkDocsConfig


def diagram(source: str, *_: object, **__: object) -> str:
    """Return the picture of a diagram as HTML."""
    svg = base64.b64encode(mermaidx.render(source).svg().encode()).decode()
    return (
        f'<p class="diagram"><img alt="{html.escape(source)}"'
        f' src="data:image/svg+xml;base64,{svg}"></p>'
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Return the configuration, with `diagram` for each fenced block of the language mermaid."""
    config["mdx_configs"]["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "diagram", "format": diagram}]
    }
    return config
