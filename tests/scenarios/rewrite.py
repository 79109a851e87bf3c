"""Writes into every story what happens now: `python -m tests.scenarios.rewrite`. The difference is
to be reviewed.
"""

from __future__ import annotations

from tests.scenarios import stories

if __name__ == "__main__":
    for path in stories.paths():
        path.write_text(stories.played(path).text, encoding="utf-8")
