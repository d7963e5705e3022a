# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON codec: what it writes besides built-in values, and how it refuses what is no JSON."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import pytest
from msgspec import Struct
from ruamel.yaml import YAML

from mwatch import json_codec
from mwatch.report import story_json
from mwatch_trainer.scrub.scrubber import Scrubber
from support.builders.story import Watch
from support.repository.planted_forms import TEXTS, plain


class Point(Struct):
    x: float
    y: float | None = None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'"\\ud800"', b"1 2", b"NaN", b"1e999", b"[" * 100_000]
)
def test_what_is_no_json_is_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        json_codec.decode(data)


def test_a_shape_is_checked() -> None:
    assert json_codec.decode(b'{"x":1,"z":5}', Point) == Point(1.0)
    assert math.isinf(json_codec.decode(b'{"x":"-inf"}', Point, strict=False).x)
    for data in (b"{}", b'{"x":"1"}', b"[1]"):
        with pytest.raises(ValueError):
            json_codec.decode(data, Point)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (MappingProxyType({"a": (1, 2)}), b'{"a":[1,2]}'),
        ({1: math.nan}, b'{"1":null}'),
        (Point(1.5), b'{"x":1.5,"y":null}'),
        (YAML().load('a: "quoted"\nb: 0x1F\nc: 1.50\nd: [1]\n'), None),
    ],
)
def test_what_our_values_hold_can_be_written(value: Any, text: bytes | None) -> None:
    written = json_codec.encode(value)
    assert written == (text or b'{"a":"quoted","b":31,"c":1.5,"d":[1]}')
    assert json_codec.encode(json_codec.to_builtins(value)) == written


def test_what_json_has_no_form_for_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        json_codec.encode(object())
    with pytest.raises(UnicodeEncodeError):
        json_codec.encode("\ud800")


@pytest.mark.parametrize("form", TEXTS)
def test_a_file_of_json_stays_json_if_it_is_scrubbed_as_a_whole(form: str) -> None:
    texts = plain(form).split("\n")
    body = {"texts": texts, "first": texts[0], "inner": json.dumps(texts), "number": 1}
    for indent in (0, 2):
        data = json_codec.encode_scrubbed(body, indent=indent)
        whole = Scrubber().scrub(data)
        read = json.loads(whole)
        assert (read["number"], len(read["texts"])) == (1, len(texts))
        assert Scrubber().scrub(whole) == whole


FIRST_READING = """
import sys, threading
from mwatch.report import story_json
sys.setswitchinterval(1e-6)
begin = threading.Barrier(8)
def read():
    begin.wait()
    story_json.from_json(sys.argv[1].encode())
threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
"""


def test_threads_may_read_a_type_for_the_first_time_together() -> None:
    data = story_json.to_json(Watch().story())
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READING, data.decode()], capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
