"""Byte equality of every plane through the daemon, before the port opens.

Fills pages and a slot with random bytes, and after they were stored loads them
into other, poisoned pages and another slot. No request owns any of them yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_qsa.arena import Arena, ArenaPlane
from sglang_qsa.layout import Unit

_POISON = 0xA5
SOURCE_SLOT, TARGET_SLOT = 1, 2


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Source and target records of one round trip over `tokens` tokens."""

    arena: Arena
    tokens: int

    @property
    def pages(self) -> int:
        return self.tokens // self.arena.layout.geometry.page_tokens

    @property
    def source_page(self) -> int:
        return 1

    @property
    def target_page(self) -> int:
        return 1 + self.pages

    def fits(self) -> bool:
        """The pools hold source and target beside their padding records."""
        return self.arena.pages > 2 * self.pages and self.arena.slots > TARGET_SLOT

    def plant(self) -> None:
        """Random bytes in the source, poison in the target."""
        for plane in self.arena.planes.values():
            for rows in plane.record_rows():
                source = self._source(plane, rows)
                source.copy_(torch.randint_like(source, 256))
                self._target(plane, rows).fill_(_POISON)

    def differing_planes(self) -> list[str]:
        """Names of the planes whose target is not the source, byte for byte."""
        return [
            name
            for name, plane in self.arena.planes.items()
            if not all(
                torch.equal(self._source(plane, rows), self._target(plane, rows))
                for rows in plane.record_rows()
            )
        ]

    def clear(self) -> None:
        """Zero source and target; SGLang initialises a slot when it hands it out."""
        for plane in self.arena.planes.values():
            for rows in plane.record_rows():
                self._source(plane, rows).zero_()
                self._target(plane, rows).zero_()

    def _source(self, plane: ArenaPlane, rows: torch.Tensor) -> torch.Tensor:
        return self._span(plane, rows, self.source_page, SOURCE_SLOT)

    def _target(self, plane: ArenaPlane, rows: torch.Tensor) -> torch.Tensor:
        return self._span(plane, rows, self.target_page, TARGET_SLOT)

    def _span(
        self, plane: ArenaPlane, rows: torch.Tensor, page: int, slot: int
    ) -> torch.Tensor:
        if plane.plane.unit is Unit.PAGE:
            return rows[page : page + self.pages]
        return rows[slot : slot + 1]
