# SPDX-License-Identifier: Apache-2.0
"""Links in documents to files and headings of the tree have existing targets."""

import re
from pathlib import Path

import pytest

from tests.unit.test_layout import ROOT, tree

PAGES = [path for path in tree() if path.suffix == ".md"]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from headings."""
    plain = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", plain, flags=re.MULTILINE)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", (ROOT / page).read_text())
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page.parent / name).resolve() if name else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []
