"""Slots that may still be written to are not handed out."""

from __future__ import annotations

import pytest
import torch

from sglang_qsa.tiers.lmcache.quarantine import (
    HeldLoad,
    Quarantine,
    RetrieveUnsettled,
)
from tests.tiers.lmcache.metric import value

pytestmark = pytest.mark.usefixtures("sglang_runtime")


class Freed:
    """What went back to the allocators, in order."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.states: list[list[int]] = []
        self.quarantine = Quarantine(
            free_tokens=lambda slots: self.tokens.append(slots.tolist()),
            free_state=lambda slot: self.states.append(slot.tolist()),
        )

    def hold(self, operation: str, tokens: list[int], state: int | None) -> None:
        slot = None if state is None else torch.tensor([state])
        self.quarantine.hold(HeldLoad(operation, torch.tensor(tokens), slot))


@pytest.fixture
def freed() -> Freed:
    return Freed()


def test_nothing_is_freed_while_held(freed: Freed) -> None:
    assert not freed.quarantine
    freed.hold("a", [64, 65], 3)
    assert freed.quarantine
    freed.quarantine.release(0)
    assert (freed.tokens, freed.states) == ([], [])
    assert freed.quarantine.operations == ["a"]


def test_settled_loads_are_freed_in_order(freed: Freed) -> None:
    for number, name in enumerate("abc"):
        freed.hold(name, [number], number + 5)
    freed.quarantine.release(2)
    assert (freed.tokens, freed.states) == ([[0], [1]], [[5], [6]])
    assert freed.quarantine.operations == ["c"]
    freed.quarantine.release(1)
    assert freed.states == [[5], [6], [7]]
    assert not freed.quarantine


def test_load_without_a_state_slot(freed: Freed) -> None:
    freed.hold("a", [1], None)
    freed.quarantine.release(1)
    assert (freed.tokens, freed.states) == ([[1]], [])


def test_held_loads_are_exported(freed: Freed) -> None:
    freed.hold("a", [1], None)
    freed.hold("b", [2], None)
    assert value("sglang_qsa_quarantined_loads") == 2
    freed.quarantine.release(2)
    assert value("sglang_qsa_quarantined_loads") == 0


def test_upstream_s_handlers_do_not_catch_the_signal() -> None:
    """They would free the slots at once."""
    assert not issubclass(RetrieveUnsettled, Exception)
