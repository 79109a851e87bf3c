"""Read docs/reference/metrics.md, and what a program serves at /metrics."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.house.house_rules import ROOT


def documented() -> dict[str, set[str]]:
    """Return the labels of each metric of the page, but `broker`, by name."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|(.*?)\|", page, flags=re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def misdescribed(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """Return the metrics whose labels are not those of the page, with both."""
    page = documented()
    served = {
        re.sub(r"_(bucket|count|sum)$", "", sample.name): {*sample.labels} - {"broker", "le"}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return {
        name: (labels, page[name])
        for name, labels in served.items()
        if name in page and labels != page[name]
    }
