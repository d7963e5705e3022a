# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Names of images: invalid ones are refused, ambiguous ones are warned of."""

from __future__ import annotations

import pytest

from mwatch.errors import InputError
from mwatch.kube.errors import Unavailable
from mwatch.manifests.image_reference import parse
from mwatch.manifests.parts import InjectRequest
from mwatch.operate.inject import with_image

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "registry", "path", "tag"),
    [
        ("example.com/team/mwatch:0.1.0", "example.com", "team/mwatch", "0.1.0"),
        ("localhost/mwatch:test", "localhost", "mwatch", "test"),
        ("registry:5000/mwatch:v1", "registry:5000", "mwatch", "v1"),
        (f"1.dkr.ecr.eu-west-1.amazonaws.com/m__w-a.b@{DIGEST}",
         "1.dkr.ecr.eu-west-1.amazonaws.com", "m__w-a.b", ""),
    ],
)  # fmt: skip
def test_a_whole_name_has_its_parts_and_no_warning(
    text: str, registry: str, path: str, tag: str
) -> None:
    found = parse(text)
    assert (found.registry, found.path, found.tag) == (registry, path, tag)
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mwatch:0.1.0", ["names no registry"]),
        ("team/mwatch", ["names no registry", "has no tag"]),
        ("example.com/mwatch", ["has no tag"]),
        ("example.com/mwatch:latest", ["the tag latest"]),
        (f"example.com/mwatch:latest@{DIGEST}", []),
    ],
)
def test_what_may_mean_another_image_is_warned_of(text: str, said: list[str]) -> None:
    found = parse(text).warnings()
    assert len(found) == len(said)
    assert all(want in has for want, has in zip(said, found, strict=True))


@pytest.mark.parametrize(
    "text",
    ["", "MWATCH:1", "a b", "mwatch:", "mwatch:1:2", "a//b:1", "-a/b:1", "example.com/", "a@b",
     "https://example.com/mwatch:1", "mwatch:" + "t" * 129, "a" * 300, "mwatch:1\n", "$(IMAGE)"],
)  # fmt: skip
def test_what_no_node_accepts_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is invalid"):
        parse(text)


class Cluster:
    namespace = "training"

    def __init__(self, found: str | Exception | None) -> None:
        self._found = found

    def image(self) -> str | None:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_without_a_name_the_image_is_that_of_the_controller() -> None:
    known = Cluster("localhost:5000/mwatch")
    request, notes = with_image(InjectRequest(""), known)  # type: ignore[arg-type]
    assert (request.image, notes) == ("localhost:5000/mwatch", [])
    for without in (None, Cluster(None), Cluster(Unavailable("no answer"))):
        request, notes = with_image(InjectRequest(""), without)  # type: ignore[arg-type]
        assert request.image.startswith("mwatch:")
        assert "names no registry" in notes[-2] and "--image" in notes[-1]
