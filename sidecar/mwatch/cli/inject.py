# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch inject`: adds wrapper, sidecar and volume to the manifest of a training job.

Exit codes: 0 done (findings of the checks are warnings here), 2 unusable manifest.

`mwatch uninject`: takes away what `mwatch inject` added.

Exit codes: 0 done, or nothing to do; 2 the manifest cannot be read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer

from mwatch import __version__
from mwatch.cli.manifest import AsJson, Diff, File, InPlace, Only, Out, target, write_result


class SidecarOption(StrEnum):
    AUTO = "auto"
    NATIVE = "native"
    CONTAINER = "container"


class ModeOption(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


Image = Annotated[str, typer.Option(metavar="IMAGE", help="Use this image of mwatch.")]
Sidecar = Annotated[
    SidecarOption,
    typer.Option(
        metavar="auto|native|container",
        help="Add the sidecar in this form; auto uses a native sidecar if the cluster supports it.",
    ),
]
Mode = Annotated[
    ModeOption | None,
    typer.Option(
        metavar="observe|act",
        help="Set this mode; by default keep the annotation mwatch.dev/mode, or observe.",
    ),
]
Controller = Annotated[
    str, typer.Option(metavar="URL", help="Ask the controller at this URL for the attempt.")
]
Container = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Wrap this container; needed if the training container is ambiguous."
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Read the checkpoints here; by default as the command says."),
]
Python = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Run the wrapper with this Python of the training image; by default python3.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Ask the cluster in this namespace."),
]
Kubeconfig = Annotated[
    str | None, typer.Option(metavar="FILE", help="Use this kubeconfig to ask the cluster.")
]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use this context of the kubeconfig.")
]


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
    """Add mwatch to the manifest of a training job.

    Print the manifest with a wrapper, a sidecar and a shared volume added to every PyTorchJob,
    JobSet, TrainJob, Job and StatefulSet in it; other objects are unchanged. Injecting again
    updates the manifest; 'mwatch uninject' restores the original.

    Example: mwatch inject -f job.yaml | kubectl apply -f -
    """
    place = target(file, out, in_place)
    from mwatch.operate import inject as app

    request = app.InjectRequest(
        image, "native", _mode(mode), controller, container, checkpoints, python, tuple(only or ())
    )
    keeps = None
    if sidecar is SidecarOption.AUTO:
        keeps = app.cluster_keeps(kubeconfig, context, namespace)
    changed = app.inject(file, request, sidecar.value, keeps)
    write_result(changed, place, diff=diff, as_json=as_json)


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
    """Remove mwatch from a manifest.

    Print the manifest as it was before 'mwatch inject'.

    Example: mwatch uninject -f job.yaml --in-place
    """
    place = target(file, out, in_place)
    from mwatch.operate import inject as app

    write_result(app.uninject(file, tuple(only or ())), place, diff=diff, as_json=as_json)
