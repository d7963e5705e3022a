# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One process that is many sidecars: who answers is told by the address that is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.cluster.fleet import Sidecars, read_seeds, write_seeds

from mwatch import json_codec
from support.runs.fleet_seeds import place, seeds


@pytest.fixture
def sidecars() -> Sidecars:
    made = Sidecars(seeds())
    pods = [place(number)._asdict() for number in range(3)]
    made.order("POST", "/pods", json_codec.encode({"run": "gpt", "attempt": 2, "pods": pods}))
    return made


def split(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json_codec.decode(body)


def test_each_address_answers_as_its_own_pod(sidecars: Sidecars) -> None:
    for number in range(3):
        status, body = split(sidecars.answer(place(number).address, "GET", "/v1/snapshot"))
        assert status == 200
        assert body["who"]["uid"] == f"uid-{number}"
        assert body["wrapper"]["attempt"] == 2


def test_an_answer_says_how_long_it_is(sidecars: Sidecars) -> None:
    head, _, body = sidecars.answer(place(0).address, "GET", "/v1/snapshot").partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_nobody_answers_at_an_address_without_a_pod(sidecars: Sidecars) -> None:
    assert split(sidecars.answer("198.18.9.9", "GET", "/v1/snapshot"))[0] == 404


def test_a_new_gang_takes_the_place_of_the_old_one(sidecars: Sidecars) -> None:
    pods = [place(7)._asdict()]
    sidecars.order("POST", "/pods", json_codec.encode({"run": "gpt", "attempt": 3, "pods": pods}))
    assert split(sidecars.answer(place(0).address, "GET", "/v1/snapshot"))[0] == 404
    assert split(sidecars.answer(place(7).address, "GET", "/v1/snapshot"))[0] == 200


def test_evidence_is_given_and_a_restart_in_place_is_refused(sidecars: Sidecars) -> None:
    address = place(1).address
    status, body = split(sidecars.answer(address, "POST", "/v1/evidence"))
    assert status == 202
    _, listed = split(sidecars.answer(address, "GET", "/v1/evidence"))
    assert listed["bundles"] == [{"id": body["id"], "state": "there"}]
    bundle = sidecars.answer(address, "GET", f"/v1/evidence/{body['id']}.tgz")
    assert bundle.endswith(b"\r\n\r\na bundle")
    status, body = split(sidecars.answer(address, "POST", "/v1/restart"))
    assert (status, body["outcome"]) == (502, "refused")


def test_polls_are_counted(sidecars: Sidecars) -> None:
    for _ in range(3):
        sidecars.answer(place(1).address, "GET", "/v1/snapshot?after=x.1")
    _, body = split(sidecars.order("GET", "/stats", b""))
    assert body["counts"] == {"GET /v1/snapshot": 3}


def test_a_pod_stops_when_it_is_asked_to(sidecars: Sidecars) -> None:
    _, body = split(sidecars.order("POST", "/stop", b'{"pod": 1}'))
    _, answer = split(sidecars.answer(place(1).address, "GET", "/v1/snapshot"))
    assert answer["beats"][0][6] <= body["at"]


def test_seeds_survive_a_file(tmp_path: Path) -> None:
    made = seeds()
    write_seeds(tmp_path / "seeds.json", made)
    assert read_seeds(tmp_path / "seeds.json") == made
