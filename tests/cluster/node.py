# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One real node: containerd, kubelet, kube-proxy and CoreDNS, on the machine of the tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cluster import addresses
from cluster.control_plane import READY_SECONDS, ControlPlane
from cluster.image import Layer, save
from cluster.keeper import pod_cgroups
from cluster.tools import tools

PAUSE = "localhost/pause:1"
_PAUSE_SOURCE = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void end(int number) { exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""
_CONTAINERD = """
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without the right to lower it runc dies with "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
"""
# Block style: one that begins with a brace is read as JSON. Both cgroup versions may be in use.
_KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{socket}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDNS: ["{node}"]
clusterDomain: cluster.local
resolvConf: ""
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
# On a full disk it would remove images that no pod uses just now, and there is nowhere to get
# them from again.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {{memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}}
"""
_COREDNS = """.:53 {{
  bind {node}
  kubernetes cluster.local {{
    kubeconfig {kubeconfig}
  }}
  errors
}}
"""


class Node:
    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._folder = plane.folder
        self._socket = self._folder / "containerd.sock"

    def start(self) -> None:
        plane, folder = self._plane, self._folder
        self._write_settings()
        plane.run("containerd", "-c", "containerd.toml")
        plane.run(
            "kube-proxy",
            "--kubeconfig", str(plane.kubeconfig("proxy")),
            "--hostname-override", "node1",
            "--cluster-cidr", addresses.PODS,
            "--conntrack-max-per-core", "0",
        )  # fmt: skip
        # Without it the kubelet ends at once.
        plane.namespaces.wait_for("containerd", self._socket.exists, READY_SECONDS)
        plane.run(
            "kubelet",
            "--config", "kubelet.yaml",
            "--kubeconfig", str(plane.kubeconfig("node")),
            "--root-dir", str(folder / "kubelet"),
            "--hostname-override", "node1",
            "--node-ip", addresses.NODE,
        )  # fmt: skip
        plane.run("coredns", "-conf", "Corefile")
        self.load(self._pause())
        plane.wait_for("ready node", "get", "node", "node1", says=" Ready")

    @staticmethod
    def give_pods_their_part() -> None:
        """All pods together weigh as much as one process of the machine: too little for those that
        train while others work. To be called when there is a pod."""
        for name, weight in (("cpu.shares", "4096"), ("cpu.weight", "400")):
            for path in [each / name for each in pod_cgroups()]:
                if path.exists():
                    path.write_text(weight)

    def load(self, archive: Path) -> None:
        """An image, from a file that `cluster.image` made."""
        subprocess.run(
            ["ctr", "-a", str(self._socket), "-n", "k8s.io", "images", "import", str(archive)],
            check=True,
            capture_output=True,
            timeout=600,
            env=self._plane.environment,
        )

    def _write_settings(self) -> None:
        folder = self._folder
        plugins = tools().plugins
        settings = {"folder": folder, "socket": self._socket, "pause": PAUSE, "plugins": plugins}
        (folder / "containerd.toml").write_text(_CONTAINERD.format(**settings))
        (folder / "kubelet.yaml").write_text(
            _KUBELET.format(socket=self._socket, node=addresses.NODE)
        )
        admin = self._plane.kubeconfig("admin")
        (folder / "Corefile").write_text(_COREDNS.format(node=addresses.NODE, kubeconfig=admin))
        (folder / "cni").mkdir()
        (folder / "cni" / "10.conflist").write_text(json.dumps(self._network()))

    def _network(self) -> dict[str, object]:
        subnet = {
            "subnet": addresses.PODS,
            "rangeStart": addresses.FIRST_POD,
            "gateway": addresses.NODE,
        }
        bridge = {
            "type": "bridge",
            "bridge": addresses.BRIDGE,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self._folder / "ipam"),
                "ranges": [[subnet]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "0.4.0", "name": "mwatch-test", "plugins": [bridge]}

    def _pause(self) -> Path:
        """What holds a pod's network while its containers come and go."""
        program = self._folder / "pause"
        subprocess.run(
            ["cc", "-static", "-O2", "-x", "c", "-", "-o", str(program)],
            input=_PAUSE_SOURCE.encode(),
            check=True,
            timeout=180,
        )
        layer = Layer(self._folder / "pause.layer")
        layer.file("pause", program)
        archive = self._folder / "pause.tar"
        save(archive, PAUSE, layer, self._folder / "pause.layer", {"Entrypoint": ["/pause"]})
        return archive
