# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Asks the API server whether a user, and the controller, have the permissions mwatch needs.

Each permission of the shipped roles is checked by one SelfSubjectAccessReview. A
SelfSubjectRulesReview would check all in one call, but is incomplete where a webhook authorizes, as
on AKS and EKS. Missing permissions are printed as a Role and its binding, ready to apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import yaml

from mwatch import shipped
from mwatch.diagnose.doctor.lines import DoctorLine, names, ok, problem, skipped
from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission
from mwatch.model.kube.fields import flag, items
from mwatch.runtime.fanout import TimedOut, gather

_SECONDS = 6.0
_RBAC = "rbac.authorization.k8s.io"
_ACCOUNT = "system:serviceaccount:"


class Right(NamedTuple):
    group: str
    resource: str
    verb: str
    name: str = ""

    @property
    def label(self) -> str:
        return f"{self.verb} {self.resource}" + (f" {self.name}" if self.name else "")


def rights_of(file: str, groups: Iterable[str]) -> list[Right]:
    """Return the rights of the Role in a shipped file, limited to API groups in `groups`."""
    path = shipped.files(shipped.Kind.RBAC).get(PurePosixPath(file))
    if path is None:
        return []
    documents = list(yaml.safe_load_all(path.read_text("utf-8")))
    served = set(groups)
    return [
        Right(group, resource, verb, name)
        for document in documents
        if document.get("kind") == "Role"
        for rule in items(document, "rules")
        for group in rule["apiGroups"]
        if group in served
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    ]


def missing(
    access: Access, namespace: str, rights: Sequence[Right], *, user: str = ""
) -> list[Right]:
    """Return the rights that the caller, or another user, lacks. NoPermission if the caller may not
    check the rights of another user."""
    asks = {
        str(index): partial(_is_allowed, access, namespace, right, user)
        for index, right in enumerate(rights)
    }
    answers = gather(asks, seconds=_SECONDS)
    refused = [each for each in answers.values() if isinstance(each, TimedOut)]
    if refused:
        raise refused[0].error or NoPermission(refused[0].why)
    return [right for index, right in enumerate(rights) if not answers[str(index)]]


def _is_allowed(access: Access, namespace: str, right: Right, user: str) -> bool:
    resource, _, part = right.resource.partition("/")
    attributes = {
        "namespace": namespace, "verb": right.verb, "group": right.group, "resource": resource,
        "subresource": part, "name": right.name,
    }  # fmt: skip
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": attributes, **({"user": user} if user else {})}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
    return flag(access.call("POST", path, body=body).body, "status", "allowed")


def manifest_of(
    rights: Sequence[Right], namespace: str, role: str, user: str, cause: str = "missing"
) -> str:
    """Return YAML of a Role with only these rights, and its binding to the user."""
    name = f"{role}-{cause}"
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(verbs)}
        | ({"resourceNames": [only]} if only else {})
        for (group, resource, only), verbs in _grouped(rights).items()
    ]
    about = {"name": name, "namespace": namespace}
    reference = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    return yaml.safe_dump_all(
        [
            {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": about, "rules": rules},
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": about,
                "roleRef": reference,
                "subjects": [_subject(user)],
            },
        ],
        sort_keys=False,
    )


def _grouped(rights: Sequence[Right]) -> dict[tuple[str, str, str], set[str]]:
    found: dict[tuple[str, str, str], set[str]] = {}
    for each in rights:
        found.setdefault((each.group, each.resource, each.name), set()).add(each.verb)
    return found


def _subject(user: str) -> Mapping[str, str]:
    if user.startswith(_ACCOUNT):
        namespace, _, name = user.removeprefix(_ACCOUNT).partition(":")
        return {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    return {"apiGroup": _RBAC, "kind": "User", "name": user}


def check_rights(
    access: Access, namespace: str, groups: Iterable[str], user: str
) -> list[DoctorLine]:
    """Check the rights to read, to operate, and those of the controller."""
    served = [*groups, "", "coordination.k8s.io"]
    lines = []
    absent = missing(access, namespace, rights_of("people.yaml", served))
    if absent:
        what = names([each.label for each in absent])
        fix = "an administrator applies the Role below"
        lines.append(problem("rights to read", f"{user} may not: {what}", fix,
                             manifest_of(absent, namespace, "mwatch-view", user)))  # fmt: skip
    else:
        lines.append(ok("rights to read", f"{user} has all of role mwatch-view"))
    absent = missing(access, namespace, rights_of("operate.yaml", served))
    if absent:
        what = names([each.label for each in absent])
        why = f"pause, restart and stop need more: {user} may not {what}"
        fix = "to operate jobs, an administrator applies the Role below"
        lines.append(skipped("rights to act", why, fix,
                             manifest_of(absent, namespace, "mwatch-operate", user)))  # fmt: skip
    else:
        lines.append(ok("rights to act", f"{user} has all of role mwatch-operate"))
    return lines


def check_controller_rights(access: Access, namespace: str, groups: Iterable[str]) -> DoctorLine:
    name, user = "controller's rights", f"{_ACCOUNT}{namespace}:mwatch-controller"
    wanted = rights_of("controller.yaml", [*groups, "", "coordination.k8s.io"])
    try:
        absent = missing(access, namespace, wanted, user=user)
    except NoPermission:
        return skipped(name, "you may not ask what another account may do (SubjectAccessReview)")
    if not absent:
        return ok(name, "its service account has all of role mwatch-controller")
    what = names([each.label for each in absent])
    return problem(name, f"its service account may not: {what}", "apply the Role below",
                   manifest_of(absent, namespace, "mwatch-controller", user))  # fmt: skip
