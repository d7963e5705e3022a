# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A scrape: every metric in a run that exercises it, nothing that is not known, and well-formed.

The golden file is a whole scrape; promtool, which Prometheus itself ships, judges it.
"""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as plain

from mwatch.export.metrics.catalog import ALL
from mwatch.export.metrics.prometheus import Exporter
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit
from mwatch.model.goodput import Spent
from mwatch.model.snapshot.snapshot import Numbers, Snapshot
from support.builders.snapshot import busy_snapshot, empty_snapshot
from support.debian_tools import debian_tool

GOLDEN = Path(__file__).parents[2] / "data" / "scrape.txt"


def text(*snapshots: Snapshot) -> str:
    return Exporter(lambda: snapshots).scrape().body.decode()


def series(*snapshots: Snapshot) -> dict[str, float]:
    """`name{label="value"}` → value, without `run`."""
    found = {}
    for family in plain(text(*snapshots)):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "run"}
            inner = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            found[f"{sample.name.removeprefix('mwatch_')}{{{inner}}}"] = sample.value
    return found


def names(*snapshots: Snapshot) -> set[str]:
    return {sample.name for family in plain(text(*snapshots)) for sample in family.samples}


def test_the_scrape_is_the_golden_one() -> None:
    """Fix: write what `text(busy_snapshot())` gives into the file, and look at the difference."""
    assert text(busy_snapshot()) == GOLDEN.read_text("utf-8")


def test_a_busy_run_has_every_metric_of_the_catalogue() -> None:
    assert names(busy_snapshot()) == {metric.name for metric in ALL}


@pytest.fixture(scope="session")
def promtool() -> Path:
    return debian_tool("prometheus", "promtool")


def test_promtool_finds_nothing_to_complain_about(promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=GOLDEN.read_bytes(),
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_every_series_names_its_run_and_only_known_labels() -> None:
    labels = {metric.name: {"run", *metric.labels} for metric in ALL}
    for family in plain(text(busy_snapshot())):
        for sample in family.samples:
            assert set(sample.labels) == labels[sample.name]
            assert sample.labels["run"] == "run"
            assert sample.timestamp is None


def test_of_a_job_that_nobody_has_seen_nothing_is_made_up() -> None:
    found = names(empty_snapshot())
    assert not found & {
        "mwatch_iteration", "mwatch_loss", "mwatch_phase", "mwatch_goodput_ratio",
        "mwatch_last_progress_timestamp_seconds", "mwatch_checkpoint_iteration",
        "mwatch_gpu_power_watts",
    }  # fmt: skip
    assert {"mwatch_blind", "mwatch_last_look_timestamp_seconds"} <= found


def test_values_are_those_of_the_snapshot() -> None:
    found = series(busy_snapshot())
    assert found["iteration{}"] == 10
    assert found["loss{loss=lm loss}"] == 2.0
    assert found["tokens_per_second{}"] == 32 * 4096
    assert found["phase{phase=training}"] == 1
    assert found["phase{phase=saving}"] == 0
    assert found["checkpoint_iteration{kind=latest}"] == 10
    assert found["checkpoint_iteration{kind=good}"] == 8
    assert found["goodput_ratio{}"] == 0.8
    assert found["badput_seconds_total{reason=saving}"] == 20.0
    assert "badput_seconds_total{reason=training}" not in found
    assert found["incidents_total{action=restart,cause=hang}"] == 2
    assert found["incidents_total{action=none,cause=hang}"] == 0
    assert found["rank_iteration{rank=1}"] == 10


def test_an_open_incident_names_its_culprit_without_secrets() -> None:
    busy = busy_snapshot()
    (one,) = busy.open_incidents
    assert [name for name in series(busy) if name.startswith("incident_info")] == [
        "incident_info{UUID=GPU-1,action=restart,cause=hang,culprit_node=node-17,"
        "culprit_pod=gpt-worker-0,finding=stalled,rank=1,severity=critical,stage=opened}"
    ]
    odd = one._replace(culprit=Culprit(pod="a" * 999, node="token=hf_abcdefghijklmnopqrstuvwxyz01"))
    unknown = one._replace(cause=Cause.SLOW, culprit=None)
    made = text(replace(busy, open_incidents=(odd, unknown)))
    assert f'culprit_pod="{"a" * 253}"' in made
    assert "hf_abcdef" not in made
    assert 'cause="slow",culprit_node="",culprit_pod="",' in made


def test_the_worst_severity_of_a_finding_counts() -> None:
    found = series(busy_snapshot())
    assert found["finding{finding=stalled,severity=critical}"] == 1
    assert found["finding{finding=stalled,severity=warning}"] == 0
    assert found["blind{}"] == 1


def test_a_gpu_value_that_cannot_be_had_has_no_series() -> None:
    found = series(busy_snapshot())
    assert found["gpu_power_watts{UUID=GPU-0,gpu=0,rank=3}"] == 612.5
    assert not any("GPU-1" in key and "power_watts" in key for key in found)
    assert found["gpu_throttled{UUID=GPU-0,gpu=0,rank=3,reason=SwPowerCap}"] == 1


def test_sources_that_are_down_are_zero() -> None:
    found = series(busy_snapshot())
    assert (found["source_up{source=log}"], found["source_up{source=gpus}"]) == (1, 0)
    assert "source_read_timestamp_seconds{source=gpus}" not in found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_exported_as_such(value: float) -> None:
    odd = replace(busy_snapshot(), numbers=Numbers(grad_norm=value, losses={'a "b"\n\\': value}))
    found = series(odd)
    assert repr(found["grad_norm{}"]) == repr(value)
    assert any(key.startswith("loss{") for key in found)


def test_time_that_the_ledger_moves_does_not_take_a_counter_back() -> None:
    before = busy_snapshot()
    after = replace(before, spent_seconds={Spent.SAVING: 5.0, Spent.SLOW: 15.0})
    given = [before]
    exporter = Exporter(lambda: given)
    first = exporter.scrape().body
    given[0] = after
    second = exporter.scrape().body.decode()
    assert b'mwatch_badput_seconds_total{reason="saving",run="run"} 20.0' in first
    assert 'mwatch_badput_seconds_total{reason="saving",run="run"} 20.0' in second
    assert 'mwatch_badput_seconds_total{reason="slow",run="run"} 15.0' in second


def test_a_finding_that_is_gone_has_no_series_any_more() -> None:
    given = [busy_snapshot()]
    exporter = Exporter(lambda: given)
    assert b"mwatch_finding" in exporter.scrape().body
    given[0] = replace(given[0], findings=())
    assert b"mwatch_finding" not in exporter.scrape().body


def test_a_secret_in_a_name_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345678"
    odd = replace(busy_snapshot(), run="ours-7", numbers=Numbers(losses={f"x {secret}": 1.0}))
    monkeypatch.setenv("MWATCH_SCRUB", r"ours-\d")
    body = Exporter(lambda: [odd]).scrape().body
    assert secret.encode() not in body
    assert b"ours-7" not in body
    assert b"mwatch_loss{" in body


def test_several_runs_stand_side_by_side() -> None:
    both = text(busy_snapshot(), replace(busy_snapshot(), run="other"))
    assert both.count("# TYPE mwatch_iteration gauge") == 1
    assert 'mwatch_iteration{run="run"} 10.0' in both
    assert 'mwatch_iteration{run="other"} 10.0' in both


def test_of_two_names_that_are_one_without_their_secrets_the_first_is_kept() -> None:
    one, two = (f"x hf_{letter * 35}" for letter in "ab")
    odd = replace(busy_snapshot(), numbers=Numbers(losses={one: 1.0, two: 2.0}))
    lines = [line for line in text(odd).splitlines() if line.startswith("mwatch_loss{")]
    assert [line.rpartition(" ")[2] for line in lines] == ["1.0"]


def test_a_run_that_is_given_twice_is_there_once() -> None:
    assert text(busy_snapshot(), busy_snapshot()) == text(busy_snapshot())


def test_a_name_that_is_no_text_does_not_spoil_the_scrape() -> None:
    odd = replace(busy_snapshot(), numbers=Numbers(losses={"bad \udcff loss": 1.0}))
    assert series(odd)["loss{loss=bad ? loss}"] == 1.0
