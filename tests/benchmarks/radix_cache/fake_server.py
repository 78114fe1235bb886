"""A server that speaks as much of SGLang's protocol as the benchmark reads.

Its prefix cache is real (whole pages, unlimited), its model is arithmetic.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

PAGE_TOKENS = 64
MOST_TOKENS = 100_000


@dataclass(slots=True)
class FakeServer:
    """Serves in a thread of its own while its `with` block lasts.

    `die_at`, `refuse_at` and `hang_at` are numbers of requests; with the first the
    server is gone in the middle of the answer.
    """

    die_at: int = 0
    refuse_at: int = 0
    hang_at: int = 0
    hit_source: str = "device"
    metrics: bool = True
    prefill_s: float = 0.0
    token_s: float = 0.0
    tokens_per_event: int = 1
    incremental: bool = False
    """Events bring their own tokens only, not all so far."""
    info: dict[str, Any] = field(default_factory=dict)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    flushes: list[int] = field(default_factory=list)
    """The number of prompts before each flush."""
    most_at_once: int = 0
    url: str = ""
    _pages: set[tuple[int, ...]] = field(default_factory=set)
    _running: int = 0
    _cached_tokens: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _site: web.TCPSite | None = None

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,))
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(10)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_get("/server_info", self._server_info)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/generate", self._generate)
        if self.metrics:
            app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, shutdown_timeout=0)
        self._loop.run_until_complete(runner.setup())
        self._site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(self._site.start())
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _server_info(self, _: web.Request) -> web.Response:
        facts = {"version": "0", "max_req_input_len": MOST_TOKENS}
        return web.json_response(facts | self.info)

    async def _flush(self, _: web.Request) -> web.Response:
        self.flushes.append(len(self.prompts))
        self._pages.clear()
        return web.Response(text="flushed")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text="# TYPE sglang:evicted_tokens counter\n"
            f'sglang:evicted_tokens_total{{tp_rank="0"}} {self._cached_tokens}\n'
        )

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            return await self._stream(request, body)
        finally:
            self._running -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
        prompt = tuple(body["input_ids"])
        self.prompts.append(prompt)
        self.times.append(time.monotonic())
        number = len(self.prompts)
        if number == self.refuse_at:
            return web.json_response({"error": {"message": "no"}}, status=400)
        if number == self.hang_at:
            await asyncio.sleep(1)
        cached = self._look_up(prompt)
        self._cached_tokens += cached
        answer = web.StreamResponse()
        await answer.prepare(request)
        wanted = body["sampling_params"]["max_new_tokens"]
        ids = self._continue(prompt, wanted)
        await asyncio.sleep(self.prefill_s)
        sent = 0
        while sent < wanted:
            if number == self.die_at and sent > wanted // 2:
                await self._die(request)
            end = min(sent + self.tokens_per_event, wanted)
            meta = self._meta(prompt, cached, end)
            if end == wanted:
                meta["finish_reason"] = {"type": "length"}
            new = ids[sent if self.incremental else 0 : end]
            event = {"output_ids": new, "meta_info": meta}
            await answer.write(f"data: {json.dumps(event)}\n\n".encode())
            sent = end
            await asyncio.sleep(self.token_s)
        self._keep((*prompt, *ids[:-1]))
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def _die(self, request: web.Request) -> None:
        assert self._site is not None
        assert request.transport is not None
        await self._site.stop()
        request.transport.abort()

    def _meta(
        self, prompt: tuple[int, ...], cached: int, tokens: int
    ) -> dict[str, Any]:
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": tokens,
            "cached_tokens": cached,
            "cached_tokens_details": {self.hit_source: cached} if cached else None,
            "finish_reason": None,
        }

    def _continue(self, prompt: tuple[int, ...], tokens: int) -> list[int]:
        return [(sum(prompt) + 31 * at) % 487 + 5 for at in range(tokens)]

    def _look_up(self, prompt: tuple[int, ...]) -> int:
        end = 0
        while (
            end + PAGE_TOKENS < len(prompt)
            and prompt[: end + PAGE_TOKENS] in self._pages
        ):
            end += PAGE_TOKENS
        return end

    def _keep(self, tokens: tuple[int, ...]) -> None:
        for end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS):
            self._pages.add(tokens[:end])
