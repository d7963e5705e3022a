# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: add the pages that are not in `docs/`, and lead their links."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site.pages import runbook_menu, texts, translate


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    for section in config.nav or []:
        if "Runbooks" in section:
            section["Runbooks"] = runbook_menu()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in texts().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return translate(
        markdown, page.file.src_uri, lambda path: files.get_file_from_path(path) is not None
    )
