"""What `make docs` does to a page before it is rendered: links that leave docs/ become the file's path.

The site holds docs/ without its notes. A link to the source, as `[the rules](../../registry.yaml)`, leads somewhere in
a checkout; in the site its text stays, with the path behind it. A path that does not exist ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = Path(page.file.abs_src_path).parent
    markdown = re.sub(r"\A<!--.*?-->\s*", "", markdown)  # before a title it would hide it

    def told(link: re.Match[str]) -> str:
        text, target = link[1], (here / link[2].partition("#")[0]).resolve()
        inside = target.is_relative_to(ROOT / "docs") and not target.is_relative_to(ROOT / "docs" / "notes")
        if "://" in link[2] or link[2].startswith("#") or inside:
            return link[0]
        if not target.exists():
            raise ValueError(f"{page.file.src_path} links to {link[2]}, which does not exist")
        path = target.relative_to(ROOT)
        return f"{text} (`{path}`)" if path.name not in text else f"`{path}`"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^()\s]+)\)", told, markdown)
