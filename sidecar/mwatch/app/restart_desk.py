# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A restart in place for whoever asks over HTTP: first whether it may be, then evidence, then it.

Evidence that somebody has just asked for is not made twice: who knows that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mwatch.act.restart_in_place import restart_in_place
from mwatch.app.evidence_desk import EvidenceDesk
from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome
from mwatch_trainer.control_client import ask

_EVIDENCE_SECONDS = 25.0


class RestartDesk:
    def __init__(self, volume: Path, evidence: EvidenceDesk) -> None:
        self._volume = str(volume)
        self._evidence = evidence

    def restart(self, order: RestartOrder) -> RestartAnswer:
        """Takes as long as the evidence does."""
        could = restart_in_place(self._ask, order, is_check=True)
        if could.outcome is not RestartOutcome.ACCEPTED:
            return could
        saved = None
        if order.wants_evidence:
            saved = self._evidence.ask(f"before a restart in place by {order.who}: {order.reason}")
            if saved is not None:
                self._evidence.manifest(saved, _EVIDENCE_SECONDS)
        return restart_in_place(self._ask, order)._replace(evidence=saved)

    def _ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        return ask(self._volume, request, seconds)
