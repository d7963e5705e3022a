# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch inject` adds mwatch to the manifest of a training job; `mwatch uninject` removes it.

Exit codes: 0 done (findings of the checks are warnings here), or nothing to do; 2 the manifest
cannot be read or used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import Context, flag, option
from mwatch.cli.shared.terminal import write
from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from mwatch.model.checks import Problem
    from mwatch.operate.inject import Changed

_DIFF_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


File = Annotated[
    str, option("FILE|-", "Read the manifest from this file; - is standard input.", "--file", "-f")
]
Out = Annotated[
    Path | None,
    option("FILE", "Write the result to this file instead of standard output.", "--out", "-o"),
]
InPlace = Annotated[bool, flag("--in-place", "Change FILE itself.")]
Diff = Annotated[bool, flag("--diff", "Print what would change and write nothing.")]
AsJson = Annotated[bool, flag("--json", "Print objects, notes and problems as JSON.")]
Only = Annotated[list[str] | None, option("NAME", "Change this job only; repeatable.")]
Image = Annotated[
    str,
    option("IMAGE", "Use this image of mwatch; by default that of the controller in the cluster."),
]
Sidecar = Annotated[
    Literal["container", "native"],
    option(
        "container|native",
        "Add the sidecar in this form; while its image cannot be pulled, a native one keeps the "
        "trainer from starting.",
    ),
]
Wrapper = Annotated[
    Literal["configmap", "image"],
    option(
        "configmap|image",
        "Use the wrapper of the ConfigMap mwatch-run, or copy it from the image before the trainer "
        "starts, which then needs that image.",
    ),
]
Mode = Annotated[
    Literal["observe", "act"] | None,
    option(
        "observe|act", "Set this mode; by default keep the annotation mwatch.dev/mode, or observe."
    ),
]
Controller = Annotated[str, option("URL", "Ask the controller at this URL for the attempt.")]
Container = Annotated[
    str | None,
    option("NAME", "Wrap this container; needed if the training container is ambiguous."),
]
Checkpoints = Annotated[
    str | None, option("DIR", "Read the checkpoints here; by default as the command says.")
]
Python = Annotated[
    str | None,
    option("FILE", "Run the wrapper with this Python of the training image; by default python3."),
]
Namespace = Annotated[
    str | None, option("NAME", "Ask the cluster in this namespace.", "--namespace", "-n")
]
Kubeconfig = Annotated[str | None, option("FILE", "Use this kubeconfig to ask the cluster.")]


def inject(
    file: File = "-",
    *,
    image: Image = "",
    sidecar: Sidecar = "container",
    wrapper: Wrapper = "configmap",
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
    JobSet, TrainJob, Job and StatefulSet in it, and a Service at which the pods of a PyTorchJob
    meet although a sidecar cannot start; other objects are unchanged. Injecting again
    updates the manifest; 'mwatch uninject' restores the original. The training image needs
    /bin/sh; without Python 3.8 or newer in it the command runs unwatched.

    Example: mwatch inject -f job.yaml | kubectl apply -f -
    """
    place = target(file, out, in_place)
    from mwatch.operate import inject as app

    request = app.InjectRequest(
        image,
        sidecar,
        mode,
        controller,
        container,
        checkpoints,
        python,
        tuple(only or ()),
        wrapper,
    )
    cluster = app.installed(kubeconfig, context, namespace)
    changed = app.inject(file, request, cluster)
    write_result(changed, place, diff=diff, as_json=as_json)


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


def target(file: str, out: Path | None, in_place: bool) -> Path | None:
    """Choose the file to write; None: standard output."""
    if file == "-" and sys.stdin.isatty():
        raise typer.BadParameter(
            "give the manifest with -f FILE, or pipe it to standard input", param_hint="--file"
        )
    if not in_place:
        return out
    if file == "-" or out is not None:
        raise typer.BadParameter("needs -f FILE and excludes --out", param_hint="--in-place")
    return Path(file)


def write_result(changed: Changed, out: Path | None, *, diff: bool, as_json: bool) -> None:
    """Write the manifest; print notes and problems to standard error."""
    from mwatch.operate.inject import write as write_file

    if as_json:
        write_json("injected", changed.as_json())
        return
    for note in (*changed.result.notes, *(_line(each, changed.file) for each in changed.found)):
        print(f"mwatch: {scrub_text(note)}", file=sys.stderr)
    if diff:
        _show_diff(changed)
    elif out is not None:
        write_file(out, changed.after)
    else:
        # The user's own text, byte for byte: secrets in it are not scrubbed.
        sys.stdout.buffer.write(changed.after.encode("utf-8"))
        sys.stdout.buffer.flush()


def _line(found: Problem, file: str) -> str:
    """`job.yaml:12: error: ... ; fix: ...`."""
    place = file if found.line is None else f"{file}:{found.line}"
    return f"{place}: {found.level.value}: {found.what}; fix: {found.fix} [{found.check}]"


def _show_diff(changed: Changed) -> None:
    lines = [scrub_text(each) for each in changed.diff()]
    if not sys.stdout.isatty():
        write("\n".join(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, emoji=False, markup=False, soft_wrap=True)
    for line in lines:
        style = next((style for mark, style in _DIFF_STYLES if line.startswith(mark)), "")
        console.print(Text(line, style))
