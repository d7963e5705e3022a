# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests as people write them: no two lists indented alike, spaces at ends, lists over lines.

What `inject` changes are the lines of its own; what `uninject` gives back are the same bytes.
"""

from __future__ import annotations

import difflib
import json

import pytest

from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.stream import transplanted
from mwatch.manifests.whole import inject_text, uninject_text
from support.repository.manifest_files import NATIVE, PLAIN, objects_in

JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
    name: gpt
    annotations: {
      a/b: "true" ,
      c/d: "2"
    }
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          volumes:
            - name: data \n\
              persistentVolumeClaim:
                   claimName: c
          #nodeSelector:
          #  kind: p5

          containers:
          -   name: pytorch
              image: i
              env:
              - {name: A,   value: b}
              # - name: NCCL_DEBUG
              #   value: INFO
              command: [ "torchrun","--nproc-per-node=8",
                         train.py ]   # the launcher
              args:
                  - "--save
                    /data/run"
                  - |
                    # not a comment

                    text
              volumeMounts:
                - {name: data, mountPath: /data}

              # the end of the container
          restartPolicy: OnFailure
"""
FORMS = {
    "lists of both manners": JOB,
    "a list in one line": JOB.replace(",\n                         train.py ]", ", train.py ]"),
    "Windows": JOB.replace("\n", "\r\n"),
    "no last line end": JOB.rstrip("\n"),
    "anchors": JOB.replace("replicas: 2", "replicas: &two 2").replace("/b: ", "/b: &t "),
    "more documents": f"# first\n\n---\n{JOB}\n---\n\n---\nkind: Service  \napiVersion: v1\n",
    "directives": f"# all\n%YAML 1.2\n---\n{JOB}",
    "a text as the last thing": JOB + "  runPolicy:\n    schedulingPolicy:\n      queue: >-\n"
    "        one\n        two\n",
}


@pytest.mark.parametrize("wish", [NATIVE, PLAIN], ids=["native", "container"])
@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_come_back_and_only_lines_of_ours_come_in(form: str, wish: InjectRequest) -> None:
    text = FORMS[form]
    once = inject_text(text, "f", wish).text
    assert inject_text(once, "f", wish).text == once
    assert uninject_text(once, "f").text == text
    gone = [each for each in difflib.ndiff(text.splitlines(), once.splitlines()) if each[0] == "-"]
    assert all("torchrun" in each or each.strip() == "-     }" for each in gone), gone


def test_what_is_reported_is_what_was_meant() -> None:
    once = inject_text(JOB, "f", NATIVE).text
    spec = objects_in(once)[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    trainer = spec["containers"][0]
    assert trainer["command"][-3:] == ["torchrun", "--nproc-per-node=8", "train.py"]
    assert trainer["args"] == ["--save /data/run", "# not a comment\n\ntext\n"]
    names = [each["name"] for each in spec["volumes"]]
    assert names == ["data", "mwatch", "mwatch-run", "mwatch-token"]
    assert objects_in(once)[0]["metadata"]["annotations"]["a/b"] == "true"


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
@pytest.mark.parametrize("end", ["", "\n"])
def test_json_keeps_its_indentation_and_comes_back(indent: int | None, end: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects_in(JOB)}, indent=indent)
    once = inject_text(text + end, "f", NATIVE).text
    assert len(once.splitlines()) == 1 if indent is None else f'\n{" " * indent}"' in once
    assert uninject_text(once, "f").text == text + end


@pytest.mark.parametrize(
    ("text", "before", "after", "wanted"),
    [
        ("a:  1\n", "a: 1\n", "a: 1\n", "a:  1\n"),
        ("a:  1\nc: 3 \n", "a: 1\nc: 3\n", "a: 1\nb: 2\nc: 3\n", "a:  1\nb: 2\nc: 3 \n"),
        ("a: [ 1,2 ]\n", "a: [1, 2]\n", "a: [0, 1, 2]\n", "a: [ 0, 1,2 ]\n"),
        ("a: [ 0, 1,2 ]\n", "a: [0, 1, 2]\n", "a: [1, 2]\n", "a: [ 1,2 ]\n"),
        ("a:\n    - x\n    # y\nb: 1\n", "a:\n- x\n# y\nb: 1\n", "a:\n- x\n- z\n# y\nb: 1\n",
         "a:\n    - x\n    - z\n    # y\nb: 1\n"),
        ("a:\n- x\n\n# y\n- z\nb: 1\n", "a:\n- x\n\n# y\n- z\nb: 1\n", "a:\n- x\nb: 1\n",
         "a:\n- x\n\n# y\nb: 1\n"),
    ],
    ids=["nothing", "a line", "a word", "a word less", "deeper", "a comment stays"],
)  # fmt: skip
def test_a_change_goes_to_its_place(text: str, before: str, after: str, wanted: str) -> None:
    assert transplanted(text, before, after) == wanted
