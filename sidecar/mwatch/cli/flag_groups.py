# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A command whose flags come in groups, each a NamedTuple: one field, one flag.

For a command with more flags than a signature can show. The fields are annotated as the
parameters of any other command are.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def grouped(*groups: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The function gets one object of each group, in this order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            command(*(group(*(given[name] for name in group._fields)) for group in groups))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__signature__ = Signature([each for group in groups for each in _flags(group)])  # type: ignore[attr-defined]
        return call

    return decorate


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=group._field_defaults[name],
            annotation=hints[name],
        )
        for name in group._fields
    ]
