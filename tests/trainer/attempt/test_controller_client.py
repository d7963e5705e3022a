# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's word on an attempt, from a real server on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.attempt import order
from mwatch_trainer.attempt.order import address, ask
from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.command.argv import value_of
from support.builders.attempt import act, contents, megatron, ran, saved, timeline_of


class Controller(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Any] = []
        """One for each question; the last one again and again."""
        self.asked: list[tuple[str, str | None]] = []
        self.headers: list[Any] = []

    @property
    def environ(self) -> dict[str, str]:
        host = f"http://127.0.0.1:{self.server_address[1]}/"
        return {"MWATCH_CONTROLLER": host, "MWATCH_NAMESPACE": "ml", "MWATCH_JOB": "gpt"}


class _Handler(BaseHTTPRequestHandler):
    server: Controller

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        self.server.headers.append(self.headers)
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, int):
            self.send_error(answer)
            return
        if isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.end_headers()
            return
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def controller() -> Iterator[Controller]:
    with serving() as server:
        yield server


@contextmanager
def serving(*answers: Any) -> Iterator[Controller]:
    with Controller() as server:
        server.answers = list(answers)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller on a busy machine is not one that is away."""
    monkeypatch.setattr(order, "_SECONDS", 60.0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    save = str(saved(tmp_path / "ck", 10, 20))
    return ["torchrun", megatron(tmp_path / "w"), "--save", save, "--load", save]


def test_the_controller_names_attempt_and_checkpoint(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [{"attempt": 3, "resume_from": 10, "not_before": 7.5}]
    plan = act(run, tmp_path / "v", environ=controller.environ)
    assert (plan.number, plan.resume_from, plan.not_before) == (3, 10, 7.5)
    assert value_of(plan.argv, "--ckpt-step") == "10"
    assert controller.asked[0] == ("/v1/jobs/ml/gpt/attempt", None)
    assert timeline_of(tmp_path / "ck")["attempt"] == 3


def test_every_node_takes_the_controllers_word_and_one_writes(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [{"attempt": 3, "resume_from": 10}]
    before = contents(tmp_path / "ck")
    environ = {**controller.environ, "PET_NNODES": "2", "PET_NODE_RANK": "1"}
    other = act(run, tmp_path / "v1", environ=environ)
    assert (other.number, other.resume_from, other.refused) == (3, 10, None)
    assert contents(tmp_path / "ck") == before
    first = act(run, tmp_path / "v0", environ={**environ, "PET_NODE_RANK": "0"})
    assert (first.number, first.resume_from, first.refused) == (3, 10, None)


def test_a_number_without_a_choice_leaves_the_choice_to_the_rule(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [{"attempt": 3}]
    plan = act(run, tmp_path / "v", environ=controller.environ)
    assert (plan.number, plan.resume_from) == (3, 20)


def test_it_asks_again_until_there_is_an_answer(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [503, 404, b"{", [], {"attempt": 0}, {"attempt": 2, "resume_from": 20}]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=100.0)
    assert plan.number == 2 and len(controller.asked) == 6


def test_training_does_not_wait_for_a_controller_that_is_away(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [503]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=0.2)
    assert plan.number == 1 and plan.argv == tuple(run)
    assert any("did not answer" in each for each in plan.changes)


def test_an_answer_about_an_attempt_that_ran_here_is_waited_out(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    ran(tmp_path / "v", 3)
    controller.answers = [{"attempt": 3, "resume_from": 10}]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=0.2)
    assert plan.refused is not None and plan.exit_code == 203
    controller.answers = [{"attempt": 3, "resume_from": 10}, {"attempt": 4, "resume_from": 20}]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=100.0)
    assert (plan.number, plan.resume_from) == (4, 20)


def test_the_token_is_taken_nowhere_else(controller: Controller) -> None:
    controller.answers = ["/elsewhere", {}]
    assert ask(address(controller.environ) or "", {"MWATCH_TOKEN": "t"}) is None
    assert len(controller.asked) == 1


def test_the_token_comes_from_the_environment_or_a_file(
    tmp_path: Path, controller: Controller
) -> None:
    controller.answers = [{}]
    token = tmp_path / "token"
    token.write_text("from-file\n")
    url = address(controller.environ) or ""
    ask(url, {"MWATCH_TOKEN": "from-env", "MWATCH_TOKEN_FILE": str(token)})
    ask(url, {"MWATCH_TOKEN_FILE": str(token)})
    ask(url, {"MWATCH_TOKEN_FILE": str(tmp_path / "missing")})
    ask(url, {"MWATCH_TOKEN": "a\nb"})
    assert [each for _, each in controller.asked] == [
        "Bearer from-env",
        "Bearer from-file",
        None,
        None,
    ]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MWATCH_CONTROLLER": "file:///etc", "MWATCH_JOB": "j"},
        {"MWATCH_CONTROLLER": "http://x"},
    ],
)
def test_without_an_address_nobody_is_asked(environ: dict[str, str]) -> None:
    assert address(environ) is None


def test_names_are_quoted() -> None:
    environ = {"MWATCH_CONTROLLER": "https://c:9402/", "MWATCH_JOB": "a/../b?x"}
    assert address(environ) == "https://c:9402/v1/jobs/default/a%2F..%2Fb%3Fx/attempt"


def test_who_asks_and_what_it_knows_is_reported(controller: Controller) -> None:
    controller.answers = [{}]
    ask(address(controller.environ) or "", {"MWATCH_POD": "gpt-worker-3"}, after=7)
    ask(address(controller.environ) or "", {"MWATCH_POD": "a\nb"})
    assert controller.headers[0]["Mwatch-Pod"] == "gpt-worker-3"
    assert controller.headers[0]["Mwatch-After"] == "7"
    assert "Mwatch-Pod" not in controller.headers[1]


def test_while_nobody_may_start_it_is_waited_longer_than_for_an_answer(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    wait = {"attempt": 2, "wait": True, "reason": "the old gang is not gone", "again_seconds": 0.05}
    controller.answers = [wait] * 5 + [503] + [{"attempt": 2, "resume_from": 20}]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=100.0, controller_wait=0.2)
    assert (plan.number, plan.resume_from) == (2, 20) and len(controller.asked) == 7


def test_a_wrapper_that_may_never_start_exits_for_a_restart(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [{"attempt": 2, "wait": True, "reason": "the old gang is not gone"}]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=0.5, controller_wait=0.1)
    assert plan.exit_code == 202 and "the old gang is not gone" in (plan.refused or "")


def test_what_is_left_to_the_rule_starts_at_once(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    controller.answers = [{"attempt": 1, "by_rule": True, "reason": "nothing was decided"}]
    plan = act(run, tmp_path / "v", environ=controller.environ, wait=100.0)
    assert plan.number == 1 and plan.refused is None and len(controller.asked) == 1
    assert not any("did not answer" in each for each in plan.changes)


def test_a_start_in_some_seconds_is_by_the_clock_of_the_pod(
    tmp_path: Path, run: list[str], controller: Controller
) -> None:
    # The controller's clock is a year ahead.
    ahead = time.time() + 366 * 86400
    controller.answers = [
        {"attempt": 3, "resume_from": 10, "not_before": ahead, "in_seconds": 12.0}
    ]
    plan = act(run, tmp_path / "v", environ=controller.environ)
    assert plan.not_before is not None and plan.not_before - time.time() < 13.0


def test_a_controller_that_dies_between_two_answers_keeps_nobody_waiting(
    controller: Controller, tmp_path: Path
) -> None:
    """It has heard node 1 and answered node 0; what node 0 claims names the word of node 1."""
    save = saved(tmp_path / "ck", 10, 20)
    controller.answers = [{"attempt": 1, "wait": True, "reason": "not yet"}]
    plans: list[AttemptPlan] = []
    other = threading.Thread(
        target=lambda: plans.append(
            act(on_node(tmp_path, save, 1), tmp_path / "v1", environ=controller.environ, wait=100.0,
                controller_wait=0.5)
        )
    )  # fmt: skip
    other.start()
    while not controller.headers:
        assert other.is_alive()
        time.sleep(0.01)
    node, word = controller.headers[0]["Mwatch-Word"].split()
    assert node == "1"
    controller.answers = [500]  # dead for node 1 from now on
    told = {"attempt": 1, "resume_from": 10, "not_before": None, "heard": {"1": word, "2": 5}}
    with serving(told) as living:
        first = act(on_node(tmp_path, save, 0), tmp_path / "v0", environ=living.environ)
    assert first.refused is None and timeline_of(save)["claim"]["heard"] == {"1": word}
    other.join(120)
    (plan,) = plans
    assert plan.refused is None and (plan.number, plan.resume_from) == (1, 10)
    assert plan.resume_reason.startswith("node 0")


def test_a_wrapper_that_the_claim_does_not_name_does_not_join_it(
    controller: Controller, tmp_path: Path
) -> None:
    """Of a gang that is gone, cut off from the controller: it must not be a second node 1."""
    save = saved(tmp_path / "ck", 10)
    told = {"attempt": 1, "resume_from": 10, "not_before": None, "heard": {"1": "f" * 32}}
    with serving(told) as living:
        assert act(on_node(tmp_path, save, 0), tmp_path / "v0", environ=living.environ).number == 1
    controller.answers = [500]
    late = act(on_node(tmp_path, save, 1), tmp_path / "v1", environ=controller.environ, wait=0.5)
    assert late.exit_code == 202


def on_node(tmp_path: Path, save: Path, node: int) -> list[str]:
    script = megatron(tmp_path / f"w{node}")
    return ["torchrun", "--nnodes=2", f"--node_rank={node}", script, "--save", str(save),
            "--load", str(save)]  # fmt: skip
