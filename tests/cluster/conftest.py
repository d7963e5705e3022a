# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster that the tests of this folder run on, one for all of them: made here, or one that
the user has (`cluster.given`).

Nothing of it is left behind, however the tests end: a signal that asks them to leave does so by
way of the fixtures, and what cannot be asked (SIGKILL) is cleaned up by `cluster.keeper`.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from browser.chromium import chromium
from cluster import given, images, jobset, kueue, namespaces, operator, programs
from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.controller_runs import WatchedJob
from cluster.kube_things import OF_TESTS
from cluster.kubectl import Kubectl
from cluster.missing import KUBECONFIG, missing
from cluster.node import Node
from cluster.training_job import Trainer, machine_trainer
from cluster.yard import Yard
from mwatch.kube.access import Access
from support.debian_tools import ToolMissing

_NODE = {"node", "cluster"}
_TRAINS = {"trainer"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "node: needs a node that runs pods (set by its fixtures)")
    config.addinivalue_line("markers", "trains: has pods that train (set by its fixtures)")
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what an API server alone is asked: a node's controllers touch all that lies there."""
    here = Path(__file__).parent
    ours = [each for each in items if here in each.path.parents]
    needing = _mark(ours, _NODE, pytest.mark.node)
    _mark(needing, _TRAINS, pytest.mark.trains)
    items.sort(key=set(needing).__contains__)


def pytest_collection_finish(session: pytest.Session) -> None:
    programs.write_needs((_part(each), _fixtures(each)) for each in session.items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in namespaces.restarted:
        terminalreporter.write_line(f"mwatch: {line}")


def _part(item: pytest.Item) -> str:
    if item.get_closest_marker("trains"):
        return programs.TRAINS
    return programs.WITH_NODE if item.get_closest_marker("node") else programs.WITHOUT_NODE


def _fixtures(item: pytest.Item) -> set[str]:
    return {*getattr(item, "fixturenames", ())}


def _mark(
    items: list[pytest.Item], fixtures: set[str], mark: pytest.MarkDecorator
) -> list[pytest.Item]:
    """Those that ask for one of the fixtures."""
    found = [each for each in items if fixtures & _fixtures(each)]
    for item in found:
        item.add_marker(mark)
    return found


@contextmanager
def made_plane(items: list[pytest.Item]) -> Iterator[ControlPlane]:
    try:
        wanted = set().union(*map(_fixtures, items))
        programs.build(programs.needed_by(wanted))
        if "tab" in wanted:
            chromium()
    except ToolMissing as error:
        pytest.exit(f"{error}; or name a cluster that you have in {KUBECONFIG}", 2)
    folder = Path(tempfile.mkdtemp(prefix="mwatch-cluster-"))
    try:
        plane = ControlPlane(folder)
        try:
            with plane.namespaces.inside():
                plane.start()
                yield plane
        finally:
            plane.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the keeper does it, where there is one


@pytest.fixture(scope="session")
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server; without nodes or controllers unless `cluster` is asked for."""
    if why := missing():
        pytest.exit(why, 2)
    if given.is_given():
        yield given.GivenPlane(tmp_path_factory.mktemp("given"))
        return
    with made_plane(request.session.items) as made:
        yield made


@pytest.fixture(scope="session")
def node(plane: ControlPlane) -> Node:
    """Of a cluster that is made here; a test that asks for it is skipped on another."""
    if isinstance(plane, given.GivenPlane):
        pytest.skip("needs the node itself, which a cluster that was given does not show")
    plane.start_controllers()
    started = Node(plane)
    started.start()
    return started


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, plane: ControlPlane) -> Kubectl:
    """A cluster that runs pods, with Kubeflow's operator: the same API server, and all the rest."""
    if isinstance(plane, given.GivenPlane):
        if plane.kubectl.answer("get", "crd", "pytorchjobs.kubeflow.org") is None:
            pytest.exit(f"the cluster of {KUBECONFIG} has no PyTorchJob: install it", 2)
        return plane.kubectl
    made: Node = request.getfixturevalue("node")
    for image in (images.mwatch_image(), images.trainer_image(plane.folder)):
        made.load(image)
    operator.install(plane, made)
    made.give_pods_their_part()
    return plane.kubectl


@pytest.fixture(scope="module", autouse=True)
def leave_room(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a file of tests has started does not keep the node from the next one's pods."""
    here = [each for each in request.session.items if each.path == request.path]
    needs_node = any(each.get_closest_marker("node") for each in here)
    kubectl: Kubectl | None = request.getfixturevalue("plane").kubectl if needs_node else None
    yield
    if kubectl:
        kubectl("delete", "namespace", "-l", OF_TESTS, "--wait=false")


@pytest.fixture(scope="module")
def access(plane: ControlPlane) -> Iterator[Access]:
    """The administrator's client of the API server."""
    made = things.client(plane)
    yield made
    made.close()


@pytest.fixture(scope="module")
def admin(access: Access) -> Access:
    """The same, with the custom resources of all operators installed."""
    things.install_crds(access)
    return access


@pytest.fixture
def job(access: Access) -> Iterator[WatchedJob]:
    """A job in its own namespace, with two pods that answer as sidecars do."""
    made = WatchedJob(access)
    yield made
    made.close()


@pytest.fixture(scope="session")
def jobsets(cluster: Kubectl, plane: ControlPlane) -> None:
    """JobSet's own controller."""
    if not isinstance(plane, given.GivenPlane):
        jobset.start(plane)
    elif plane.kubectl.answer("get", "crd", "jobsets.jobset.x-k8s.io") is None:
        pytest.skip(f"the cluster of {KUBECONFIG} has no JobSet")


@pytest.fixture(scope="session")
def queues(cluster: Kubectl, plane: ControlPlane) -> None:
    """Kueue's own controller."""
    if not isinstance(plane, given.GivenPlane):
        kueue.start(plane)
    elif plane.kubectl.answer("get", "crd", "workloads.kueue.x-k8s.io") is None:
        pytest.skip(f"the cluster of {KUBECONFIG} has no Kueue")


@pytest.fixture(scope="session")
def mwatch_image() -> str:
    return given.given_images().get("mwatch", images.MWATCH)


@pytest.fixture(scope="session")
def trainer() -> Trainer:
    """What a training pod is made of."""
    if not given.is_given():
        return machine_trainer(images.TRAINER)
    named = given.given_images().get("trainer")
    if named is None:
        pytest.skip(f"{given.IMAGES} names no trainer=REF, an image with `python3 -m mwatch_gpt`")
    return Trainer(named, "python3")


@pytest.fixture(scope="session")
def yard(
    cluster: Kubectl, plane: ControlPlane, mwatch_image: str, trainer: Trainer
) -> Iterator[Yard]:
    """Where real jobs train, under the controller."""
    is_made = not isinstance(plane, given.GivenPlane)
    folder = plane.folder / "checkpoints" if is_made else None
    opened = Yard(cluster, "e2e", mwatch_image, trainer, folder)
    opened.open()
    yield opened
    if not is_made:
        opened.close()
