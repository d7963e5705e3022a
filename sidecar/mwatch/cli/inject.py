# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch inject`: adds wrapper, sidecar and volume to the manifest of a training job.

Exit codes: 0 done (findings of the checks are warnings here), 2 the manifest cannot be used.

`mwatch uninject`: takes away what `mwatch inject` added.

Exit codes: 0 done, or nothing to do; 2 the manifest cannot be read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer

from mwatch import __version__
from mwatch.cli.manifest import AsJson, Diff, File, InPlace, Only, Out, hand_over, target


class SidecarOption(StrEnum):
    AUTO = "auto"
    NATIVE = "native"
    CONTAINER = "container"


class ModeOption(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


Image = Annotated[str, typer.Option(metavar="IMAGE", help="Of mwatch.")]
Sidecar = Annotated[
    SidecarOption, typer.Option(help="Its form; auto asks the cluster what it keeps.")
]
Mode = Annotated[
    ModeOption | None, typer.Option(help="Else the job's annotation mwatch.dev/mode, else observe.")
]
Controller = Annotated[str, typer.Option(metavar="URL", help="Of the controller.")]
Container = Annotated[
    str | None, typer.Option(metavar="NAME", help="The one that trains, where it cannot be told.")
]
Checkpoints = Annotated[
    str | None, typer.Option(metavar="DIR", help="The save folder, else read from the command.")
]
Python = Annotated[
    str | None, typer.Option(metavar="PATH", help="In the training image; else python3 or python.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="To ask the cluster in.")
]
Kubeconfig = Annotated[str | None, typer.Option(metavar="FILE", help="Of the cluster to ask.")]
Context = Annotated[str | None, typer.Option(metavar="NAME", help="Of that file.")]


def inject(
    file: File = "-",
    *,
    image: Image = f"mwatch:{__version__}",
    sidecar: Sidecar = SidecarOption.AUTO,
    mode: Mode = None,
    controller: Controller = "http://mwatch-controller:9402",
    container: Container = None,
    checkpoints: Checkpoints = None,
    python: Python = None,
    only: Only = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    diff: Diff = False,
    out: Out = None,
    in_place: InPlace = False,
    as_json: AsJson = False,
) -> None:
    """Add mwatch to a training job: wrapper, sidecar, shared volume. Prints the new manifest.

    PyTorchJob, JobSet, TrainJob, Job and StatefulSet; all else in the file stays as it is. To
    inject again brings it up to date; 'mwatch uninject' gives the original back.

    Example: mwatch inject -f job.yaml | kubectl apply -f -
    """
    place = target(file, out, in_place)
    from mwatch.operate import inject as app

    wish = app.InjectRequest(
        image, "native", _mode(mode), controller, container, checkpoints, python, tuple(only or ())
    )
    keeps = None
    if sidecar is SidecarOption.AUTO:
        keeps = app.cluster_keeps(kubeconfig, context, namespace)
    changed = app.inject(file, wish, sidecar.value, keeps)
    hand_over(changed, place, diff=diff, as_json=as_json)


def _mode(option: ModeOption | None) -> Literal["observe", "act"] | None:
    return None if option is None else option.value


def uninject(
    file: File = "-",
    *,
    only: Only = None,
    diff: Diff = False,
    out: Out = None,
    in_place: InPlace = False,
    as_json: AsJson = False,
) -> None:
    """Take mwatch out of a manifest again. Prints it as it was before 'mwatch inject'.

    Example: mwatch uninject -f job.yaml --in-place
    """
    place = target(file, out, in_place)
    from mwatch.operate import inject as app

    hand_over(app.uninject(file, tuple(only or ())), place, diff=diff, as_json=as_json)
