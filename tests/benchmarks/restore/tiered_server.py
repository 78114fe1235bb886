"""The fake server with a device of limited size and a tier behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.benchmarks.radix_cache.fake_server import PAGE_TOKENS, FakeServer

PAGE_BYTES = 10_000_000


@dataclass
class TieredServer(FakeServer):
    """What a request leaves goes to the tier too, and comes back from there.

    `change_at` is the number of a request that is answered otherwise.
    """

    tier: str = "host"
    device_pages: int = 20
    kept_pages: int = 1000
    """Of each prompt, in the tier."""
    backup_s: float = 0.0
    """So long after the answer a page is in the tier, and counted."""
    load_s: float = 0.0
    """What it takes to load from the tier."""
    returns: bool = True
    """What was loaded stays on the device, unlike with a linker."""
    flush_empties_tier: bool = False
    change_at: int = 0
    lookups: list[dict[str, int]] = field(default_factory=list)
    """Tokens of each prompt by source."""
    _behind: set[tuple[int, ...]] = field(default_factory=set)
    _backed_up_bytes: int = 0
    _loaded_bytes: int = 0
    _recent: dict[tuple[int, ...], None] = field(default_factory=dict)
    """Pages on the device, the one used last at the end."""

    async def _flush(self, request: web.Request) -> web.Response:
        self._recent.clear()
        if self.flush_empties_tier:
            self._behind.clear()
        return await FakeServer._flush(self, request)

    async def _metrics(self, _: web.Request) -> web.Response:
        counted = {
            "sglang:hicache_backup_bytes": self._backed_up_bytes,
            "sglang:load_back_bytes": self._loaded_bytes,
        }
        if self.tier == "storage":
            pages = self._backed_up_bytes // PAGE_BYTES
            counted["sglang:backuped_tokens"] = pages * PAGE_TOKENS
        # As with the real one, a counter that was never incremented is absent.
        lines = [
            f"# TYPE {name} counter\n{name}_total {value}\n"
            for name, value in counted.items()
            if value
        ]
        return web.Response(text="".join(lines))

    def _look_up(self, prompt: tuple[int, ...]) -> int:
        found = {"device": 0, self.tier: 0}
        end = PAGE_TOKENS
        loaded = []
        while end < len(prompt):
            page = prompt[:end]
            if page in self._recent and not found[self.tier]:
                found["device"] += PAGE_TOKENS
            elif page in self._behind:
                found[self.tier] += PAGE_TOKENS
                loaded.append(page)
            else:
                break
            end += PAGE_TOKENS
        self._loaded_bytes += PAGE_BYTES * len(loaded)
        self.prefill_s = self.load_s if loaded else 0.0
        self.lookups.append(found)
        return sum(found.values())

    def _keep(self, tokens: tuple[int, ...]) -> None:
        loaded = self.lookups[-1][self.tier] and not self.returns
        ends = range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS)
        pages = [tokens[:end] for end in ends]
        for page in [] if loaded else pages:
            self._recent.pop(page, None)
            self._recent[page] = None
        for page in list(self._recent)[: -self.device_pages]:
            del self._recent[page]
        kept = [page for page in pages[: self.kept_pages] if page not in self._behind]
        self._loop.call_later(self.backup_s, self._back_up, kept)

    def _back_up(self, pages: list[tuple[int, ...]]) -> None:
        self._behind.update(pages)
        self._backed_up_bytes += PAGE_BYTES * len(pages)

    def _continue(self, prompt: tuple[int, ...], tokens: int) -> list[int]:
        ids = FakeServer._continue(self, prompt, tokens)
        return ids[::-1] if len(self.prompts) == self.change_at else ids

    def _meta(
        self, prompt: tuple[int, ...], cached: int, tokens: int
    ) -> dict[str, Any]:
        meta = FakeServer._meta(self, prompt, cached, tokens)
        return meta | {"cached_tokens_details": self.lookups[-1]}
