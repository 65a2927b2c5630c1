"""The documents: their Python runs, their links lead somewhere, and the site's pages are all there.

Every ```python block of a page runs on the CPU, in order, in one namespace, as a reader would type it. A
block that cannot run says why in an HTML comment on the line before: ``<!-- not run: reason -->``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import mxfp8_ops

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
_FENCE = re.compile(r"(?:<!-- not run: (.+?) -->\n)?^```python\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    line: int
    code: str
    not_run: str | None


def python_blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, match.start(2)), match[2], match[1])
        for match in _FENCE.finditer(text)
    ]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=name)
def test_python_of_a_page_runs(page):
    scope = {"__name__": "__docs__"}
    for block in python_blocks(page.read_text()):
        if block.not_run is None:
            code = "\n" * block.line + block.code  # errors show the line of the page
            exec(compile(code, str(page), "exec"), scope)


def test_every_fence_is_seen():
    for page in PAGES:
        text = page.read_text()
        assert len(python_blocks(text)) == len(re.findall(r"^\s*```\s*(?:python|py)\b", text, re.M))
    assert sum(len(python_blocks(page.read_text())) for page in PAGES) > 5


def test_the_api_page_has_every_public_name():
    documented = re.findall(r"^::: .*\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.M)
    assert set(mxfp8_ops.__all__) - {"__version__"} <= set(documented)
    modules = {path.stem for path in ROOT.glob("mxfp8_ops/compat/[a-z]*.py")}
    assert modules <= set(documented)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_of_the_repository(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{name(page)} links to {target}"
        assert not fragment or fragment in anchors(file), f"{name(page)} links to {target}"
