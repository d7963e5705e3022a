# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which data the attempt that runs stands on: by its command line, else by what it prints."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.observation import Observed
from mwatch.model.snapshot.pod import PodFacts
from mwatch.runtime.clock import Clock
from mwatch.sidecar.sidecar import PodWatch
from mwatch.watch.collector import VolumeCollector
from support.builders.events import events, grammar
from support.builders.job import entries
from support.runs.live_volume import LiveVolume
from support.waiting import until

BLOCK = """------------------------ arguments ------------------------
  data_path ....................................... ['/d/printed']
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""


class Bench:
    def __init__(self, path: Path) -> None:
        self.volume = LiveVolume(path)
        self.live = VolumeCollector(path, "p", grammar(), entries(), Clock())
        self.watch = PodWatch(self.live)

    def prefixes(self) -> list[str]:
        self.live.read()
        facts: PodFacts = until(self.watch.facts)
        return [each.prefix for each in facts.data]

    def prints(self, text: str) -> None:
        for event in events(text):
            self.watch.observe(Observed(1.0, "p", event))


def test_what_the_trainer_prints_counts_where_its_command_hides_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.volume.start(argv=["bash", "train.sh"])
    assert bench.prefixes() == []
    bench.prints(BLOCK)
    assert bench.prefixes() == ["/d/printed"]


def test_the_command_line_goes_first_and_each_attempt_has_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.prints(BLOCK)
    for number, prefix in ((1, "/d/a"), (2, "/d/b")):
        bench.volume.start(number, argv=["x.py", "--data-path", prefix])
        assert bench.prefixes() == [prefix]


def test_where_it_saves_is_looked_at_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "latest_checkpointed_iteration.txt").write_text("40")
    bench.volume.start(save=str(tmp_path / "ckpt"))

    def tracked() -> bool:
        bench.live.read()
        facts = bench.watch.facts()
        return facts is not None and facts.tracker == "40"

    assert until(tracked)
    facts = bench.watch.facts()
    assert facts is not None
    assert [each.path for each in facts.mounts] == [str(tmp_path / "ckpt")]
