# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""PromQL selectors and expressions shared by all dashboards.

mwatch sets the label `run`; `namespace` and `pod` come from the scrape and are missing if a single
machine is scraped by its address. A Prometheus, Thanos or Mimir over several clusters adds
`cluster`. "All" is `.*`, which also matches a missing label. Every pod of a job has a sidecar, so
metrics of the whole run exist once per pod and are joined by `max by (cluster, namespace, run)`. A
controller exports them once more, with the label `run_namespace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mwatch.model.phase import JobPhase

PLACE = 'cluster=~"$cluster", namespace=~"$namespace"'
ONE_RUN = f'{PLACE}, run="$run"'
MANY_RUNS = f'{PLACE}, run=~"$run"'
PODS = f'{PLACE}, run="$run", pod=~"$pod"'
RUN_LABELS = ("cluster", "namespace", "run")
BY_RUN = ", ".join(RUN_LABELS)

BY_CONTROLLER = 'run_namespace!=""'
BY_SIDECARS = 'run_namespace=""'
CONTROLLERS = PLACE
"""Metrics of the controllers themselves; they have no label `run`."""

Shape = Callable[[str], str]
"""Transforms a selector before the series are joined, such as `rate`."""

PHASES = (
    JobPhase.QUEUED,
    JobPhase.SCHEDULING,
    JobPhase.STARTING,
    JobPhase.LOADING,
    JobPhase.FIRST_STEP,
    JobPhase.TRAINING,
    JobPhase.EVALUATING,
    JobPhase.SAVING,
    JobPhase.ASYNC_FINALIZE,
    JobPhase.STOPPING,
    JobPhase.ENDED,
)
"""If pods report different phases, the one later in this list is shown."""
MAX_ROWS = 64
"""Of a panel with one row per rank: more cannot be read, and are slow to draw."""
SEVERITIES = ("info", "warning", "critical")


def of(metric: str, where: str, *more: str) -> str:
    """Select the series of a metric: `of("mwatch_phase", ONE_RUN, 'phase="saving"')`."""
    return f"{metric}{{{', '.join((where, *more))}}}"


def equal(label: str, value: str) -> str:
    return f'{label}="{value}"'


def per_run(expr: str, *labels: str, how: str = "max") -> str:
    """Aggregate to one series per run and value of `labels`.

    A controller exports runs of other namespaces: their namespace is `run_namespace`.
    """
    named = f'label_replace({expr}, "namespace", "$1", "run_namespace", "(.+)")'
    return f"{how} by ({', '.join((*RUN_LABELS, *labels))}) ({named})"


def controller_first(
    metric: str, where: str, *labels: str, how: str = "max", shape: Shape = str
) -> str:
    """As `per_run`, from the controller if the run has one, else from the sidecars.

    For metrics that must not be joined: the sidecar of a pod created after a restart does not know
    earlier time and incidents, and counts as observed what the controller counts as a restart.
    """
    ours, theirs = (of(metric, where, by) for by in (BY_CONTROLLER, BY_SIDECARS))
    return (
        f"({per_run(shape(ours), *labels, how=how)}\n"
        f" or ({per_run(shape(theirs), *labels, how=how)}\n"
        f" unless on ({BY_RUN}) {per_run(ours)}))"
    )


def silence(where: str) -> str:
    """Seconds without progress, by the sidecar's own clock: the minimum over all pods."""
    looked = of("mwatch_last_look_timestamp_seconds", where)
    return per_run(f"{looked} - {of('mwatch_last_progress_timestamp_seconds', where)}", how="min")


def age(expr: str) -> str:
    """Seconds since a timestamp, by the clock of Prometheus."""
    return f"time() - {expr}"


def phase_code(where: str) -> str:
    """Number of the phase in `PHASES`, starting at 1."""
    cases = (
        f"({of('mwatch_phase', where, equal('phase', phase.value))} == 1) * {code}"
        for code, phase in enumerate(PHASES, 1)
    )
    return per_run(_either(cases))


def severity_code(where: str, *labels: str) -> str:
    """Severity of each finding: 1 info, 2 warning, 3 critical."""
    cases = (
        f"({of('mwatch_finding', where, equal('severity', word))} == 1) * {code}"
        for code, word in enumerate(SEVERITIES, 1)
    )
    return per_run(_either(cases), "finding", *labels)


def mfu(where: str) -> str:
    """Model FLOP/s utilisation: the printed throughput by the peak of the slowest GPU."""
    throughput = per_run(of("mwatch_throughput_tflops", where))
    return f"{throughput}\n / {per_run(of('mwatch_gpu_peak_tflops', where), how='min')}"


def worst(expr: str, *, is_lowest: bool = False) -> str:
    """One row per rank, in order; of more than `MAX_ROWS` the worst at each moment.

    Ranks are padded with zeros, because Grafana sorts series by label text.
    """
    expr = f"{'bottomk' if is_lowest else 'topk'}({MAX_ROWS}, {expr})"
    for digits in (1, 2, 3):
        zeros = "0" * (4 - digits)
        expr = f'label_replace({expr}, "rank", "{zeros}$1", "rank", "([0-9]{{{digits}}})")'
    return expr


def rate(series: str) -> str:
    return f"rate({series}[$__rate_interval])"


def _either(cases: Iterable[str]) -> str:
    return "\n or ".join(cases)
