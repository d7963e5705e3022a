# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Texts of several lines, the last of which looks like a comment or a directive of YAML."""

from __future__ import annotations

import pytest
import yaml

from mwatch.manifests.whole import inject_text, uninject_text
from support.repository.manifest_files import PLAIN, objects_in


@pytest.mark.parametrize("value", ["v\n%:_0", "v\n# no comment", "v\n%YAML 1.2", "v\n\n# \n"])
@pytest.mark.parametrize("flow", [True, False])
def test_a_text_whose_last_line_looks_like_a_comment_stays_whole(value: str, flow: bool) -> None:
    container = {"name": "main", "image": "i", "command": ["python"]}
    spec = {"containers": [{**container, "env": [{"name": "ODD", "value": value}]}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gpt"}}
    text = yaml.safe_dump({**job, "spec": {"template": {"spec": spec}}}, default_flow_style=flow)
    once = inject_text(text, "f", PLAIN).text
    assert inject_text(once, "f", PLAIN).text == once
    assert objects_in(uninject_text(once, "f").text) == objects_in(text)
