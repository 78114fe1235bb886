"""One prompt through its requests, and what they say about a restore."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.radix_cache.samples import COMPUTED, EXTERNAL, HOST, STORAGE

COLD = "cold"
HIT = "device hit"
RESTORED = "restored"
HIT_AFTER = "device hit after"
STEPS = (COLD, HIT, RESTORED, HIT_AFTER)
COMPARED = (HIT, RESTORED, HIT_AFTER)
"""Requests whose answers have to be equal."""

RESTORING = (HOST, STORAGE, EXTERNAL)
"""Sources that a prompt is restored from."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as the client saw it and as the server accounts for it."""

    ttft_s: float
    sources: dict[str, int]
    """Prompt tokens by where they came from; without those of zero tokens."""
    output_ids: tuple[int, ...]

    @property
    def computed_tokens(self) -> int:
        return self.sources.get(COMPUTED, 0)

    @property
    def cached_tokens(self) -> int:
        return sum(self.sources.values()) - self.computed_tokens

    @property
    def tier_tokens(self) -> int:
        return sum(self.sources.get(tier, 0) for tier in RESTORING)


@dataclass(slots=True)
class Sample:
    """A prompt and the requests that were answered so far, by `STEPS`."""

    length_tokens: int
    repeat: int
    answers: dict[str, Answer] = field(default_factory=dict)
    settled_s: float | None = None
    """How long backups were waited for."""
    loaded_bytes: int | None = None
    """For the restored request; None where the server does not report it."""

    @property
    def ended(self) -> bool:
        return len(self.answers) == len(STEPS)

    @property
    def was_cold(self) -> bool:
        return COLD in self.answers and not self.answers[COLD].cached_tokens

    @property
    def served(self) -> bool:
        """All that the device had of the prompt came back from a tier."""
        if RESTORED not in self.answers:
            return False
        wanted = self.answers[HIT].cached_tokens
        return 0 < wanted <= self.answers[RESTORED].tier_tokens

    @property
    def yardstick(self) -> str | None:
        """The device hit that computed what the restored request computed.

        The one after it; for a linker, which leaves a restored prompt to its request,
        the one before. None where neither did: the difference would not be a restore.
        """
        restored = self.answers.get(RESTORED)
        for step in (HIT_AFTER, HIT):
            hit = self.answers.get(step)
            if hit is None or restored is None or hit.tier_tokens:
                continue
            if hit.computed_tokens == restored.computed_tokens:
                return step
        return None

    @property
    def added_s(self) -> float | None:
        """What the restored request took longer than its yardstick."""
        if not self.ended or not self.served or self.yardstick is None:
            return None
        return self.answers[RESTORED].ttft_s - self.answers[self.yardstick].ttft_s

    @property
    def outputs_equal(self) -> bool:
        """Of those that were compared."""
        found = [self.answers[step] for step in COMPARED if step in self.answers]
        return len({answer.output_ids for answer in found}) <= 1
