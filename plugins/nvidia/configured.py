"""A tile as a configuration's JSON values, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

__all__ = ["Configured"]


class Configured:
    """A dataclass that a configuration makes; only what differs from the defaults is written."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From a configuration's JSON values."""
        return cls(**config)

    def config(self) -> dict[str, Any]:
        """As a configuration: what differs from the defaults."""
        plain = {field.name: field.default for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in dataclasses.asdict(self).items() if value != plain[name]}  # type: ignore[call-overload]
