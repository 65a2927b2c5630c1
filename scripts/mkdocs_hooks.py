"""Pages of the site that are files outside ``docs/``, and the links between all of them.

The files keep the links that work in the repository; here they are turned into those of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/h200.png": "benchmarks/results/h200.png",
}
_IN_REPOSITORY = {site: path for path, site in OUTSIDE.items()}
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def on_files(files, config):
    """Add the files outside ``docs/``."""
    for path, site in OUTSIDE.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Turn a link between files of the repository into one between pages of the site."""
    here = page.file.src_uri
    origin = _IN_REPOSITORY.get(here, f"docs/{here}")

    def rewritten(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        if not (ROOT / target).exists():
            return match[0]  # code that looks like a link, or a broken link, which mkdocs reports
        site = OUTSIDE.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(site, posixpath.dirname(here) or ".") + match[3]

    return _LINK.sub(rewritten, markdown)
