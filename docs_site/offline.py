# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m docs_site.offline SITE`: fail if a page would ask another host for anything."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

_LOADED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src",
    "audio": "src", "embed": "src", "object": "data", "link": "href",
}  # fmt: skip
"""What a browser fetches by itself; a link in the text is followed only by a person."""
_ONLY_NAMED = {"canonical", "prev", "next", "alternate"}


class _Requests(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(_LOADED.get(tag, "")) or ""
        if "mermaid" in (given.get("class") or "").split():
            self.found.append("mermaid, which the theme loads from a CDN")
        if tag == "link" and given.get("rel") in _ONLY_NAMED:
            return
        if address.startswith(("http:", "https:", "//")):
            self.found.append(address)


def requests_of(page: str) -> list[str]:
    """Addresses on other hosts that this page loads."""
    parser = _Requests()
    parser.feed(page)
    return parser.found


def main(site: Path) -> int:
    pages = sorted(site.rglob("*.html"))
    found = {
        f"{page.relative_to(site)}: {address}"
        for page in pages
        for address in requests_of(page.read_text("utf-8"))
    }
    for each in sorted(found):
        print(f"docs_site: asks another host: {each}", file=sys.stderr)
    if not pages:
        print(f"docs_site: no page in {site}", file=sys.stderr)
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
