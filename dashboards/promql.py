# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Selectors and shapes of PromQL that all dashboards share.

`run` is a label of ours; `namespace` and `pod` come from the scrape and are missing where one box
is scraped by its address. "All" is `.*`, which also matches a label that is missing. Each pod of a
job has a watcher, so whatever is said of the run as a whole is said once per pod: it is joined by
`max by (namespace, run)`. A controller says the same once more, with the label `run_namespace`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mwatch.model.phase import JobPhase

ONE_RUN = 'namespace=~"$namespace", run="$run"'
MANY_RUNS = 'namespace=~"$namespace", run=~"$run"'
PODS = 'namespace=~"$namespace", run="$run", pod=~"$pod"'

BY_CONTROLLER = 'run_namespace!=""'
BY_SIDECARS = 'run_namespace=""'
CONTROLLERS = 'namespace=~"$namespace"'
"""Of the controllers themselves: they are of no run."""

Shape = Callable[[str], str]
"""What is made of the series before they are joined."""

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
"""Where pods differ, the one that comes later here is shown."""
SEVERITIES = ("info", "warning", "critical")


def of(metric: str, where: str, *more: str) -> str:
    """The series of a metric: `of("mwatch_phase", ONE_RUN, 'phase="saving"')`."""
    return f"{metric}{{{', '.join((where, *more))}}}"


def equal(label: str, value: str) -> str:
    return f'{label}="{value}"'


def per_run(expr: str, *labels: str, how: str = "max") -> str:
    """One series for each run, and for each value of `labels`.

    A controller speaks for runs of other namespaces: theirs is `run_namespace` then.
    """
    named = f'label_replace({expr}, "namespace", "$1", "run_namespace", "(.+)")'
    return f"{how} by ({', '.join(('namespace', 'run', *labels))}) ({named})"


def spoken(metric: str, where: str, *labels: str, how: str = "max", shape: Shape = str) -> str:
    """As `per_run`, by the controller of the run where it has one, else by the sidecars.

    For what may not be joined: a sidecar of a pod that was made after a restart knows of no time
    and no incident before, and counts as observed what the controller counts as a restart.
    """
    ours, theirs = (of(metric, where, by) for by in (BY_CONTROLLER, BY_SIDECARS))
    return (
        f"({per_run(shape(ours), *labels, how=how)}\n"
        f" or ({per_run(shape(theirs), *labels, how=how)}\n"
        f" unless on (namespace, run) {per_run(ours)}))"
    )


def silence(where: str) -> str:
    """Seconds without progress, by the watcher's clock alone: the least of what pods say."""
    looked = of("mwatch_last_look_timestamp_seconds", where)
    return per_run(f"{looked} - {of('mwatch_last_progress_timestamp_seconds', where)}", how="min")


def age(expr: str) -> str:
    """Seconds since that moment, by Prometheus's own clock."""
    return f"time() - {expr}"


def phase_code(where: str) -> str:
    """The number of the phase in `PHASES`, from 1."""
    cases = (
        f"({of('mwatch_phase', where, equal('phase', phase.value))} == 1) * {code}"
        for code, phase in enumerate(PHASES, 1)
    )
    return per_run(_either(cases))


def severity_code(where: str, *labels: str) -> str:
    """1 info, 2 warning, 3 critical, for each thing that is found."""
    cases = (
        f"({of('mwatch_finding', where, equal('severity', word))} == 1) * {code}"
        for code, word in enumerate(SEVERITIES, 1)
    )
    return per_run(_either(cases), "finding", *labels)


def in_order(expr: str) -> str:
    """Ranks with leading zeros: series are ordered by their labels, and those are text."""
    for digits in (1, 2, 3):
        zeros = "0" * (4 - digits)
        expr = f'label_replace({expr}, "rank", "{zeros}$1", "rank", "([0-9]{{{digits}}})")'
    return expr


def rate(series: str) -> str:
    return f"rate({series}[$__rate_interval])"


def _either(cases: Iterable[str]) -> str:
    return "\n or ".join(cases)
