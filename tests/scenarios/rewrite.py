"""Writes into every story what happens now: `python -m tests.scenarios.rewrite`. The difference is to be reviewed.

May live here: that command.
"""

from __future__ import annotations

from tests.scenarios import stories

if __name__ == "__main__":
    for path in stories.paths():
        path.write_text(stories.told(path).text, encoding="utf-8")
