"""One SGLang server over HTTP: what it says of itself, and streamed generations."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from benchmarks.radix_cache import counters
from sglang_qsa.errors import QsaError, refusal

_READ_BUFFER_BYTES = 2**22
"""Holds one event: every event repeats all tokens of the answer so far."""

_CONNECT_S = 30.0
_IDLE_S = 2.0
"""A connection is not used again after it: SGLang closes idle ones after 5 s, and a
POST that meets the closing is lost."""


class ServerFailed(QsaError):
    """A server is gone, refuses a request, or does not answer in time."""


@dataclass(slots=True)
class Streamed:
    """One answer, with the times at which its tokens came."""

    ttft_s: float = 0.0
    seconds: float = 0.0
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the event before, and the tokens that came with this one."""
    output_ids: list[int] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


class Server:
    """Requests to the server at `url`.

    Args:
        silence_s: longest time without a byte of an answer.
    """

    def __init__(self, url: str, silence_s: float) -> None:
        self.url = url.rstrip("/")
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S, sock_read=silence_s
        )
        self._silence_s = silence_s
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            read_bufsize=_READ_BUFFER_BYTES,
        )

    async def close(self) -> None:
        await self._session.close()

    async def info(self) -> dict[str, Any]:
        """The server's arguments and limits."""
        async with self._answer("GET", "/server_info") as answer:
            try:
                found = orjson.loads(await answer.read())
            except orjson.JSONDecodeError:
                found = None
        if not isinstance(found, dict) or not found.get("version"):
            raise self._failed("no SGLang server", "/server_info", "check the address")
        return found

    async def flush(self) -> None:
        """Drop every prefix from device and host memory."""
        async with self._answer("POST", "/flush_cache", params={"timeout": "30"}):
            pass

    async def counters(self) -> dict[str, float]:
        """The counters of the metrics page; none where the server has no such page."""
        async with self._answer("GET", "/metrics", allow=(404,)) as answer:
            return counters.read(await answer.text()) if answer.status == 200 else {}

    async def generate(self, input_ids: list[int], answer_tokens: int) -> Streamed:
        """Continue `input_ids` greedily by exactly `answer_tokens` tokens.

        Raises:
            ServerFailed: no whole answer.
        """
        body = _body(input_ids, answer_tokens)
        streamed = Streamed()
        started = before = time.perf_counter()
        tokens = 0
        headers = {"Content-Type": "application/json"}
        async with self._answer(
            "POST", "/generate", data=body, headers=headers
        ) as answer:
            async for line in answer.content:
                event = self._event(line)
                if event is None:
                    continue
                now = time.perf_counter()
                new = event["meta_info"]["completion_tokens"] - tokens
                if new <= 0:
                    streamed.meta = event["meta_info"]
                    continue
                if tokens == 0:
                    streamed.ttft_s = now - started
                else:
                    streamed.gaps.append((now - before, new))
                before, tokens = now, tokens + new
                _collect(streamed, event)
        streamed.seconds = before - started
        self._require_whole(streamed, tokens, answer_tokens)
        return streamed

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, *, allow: tuple[int, ...] = (), **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(
                method, self.url + path, **options
            ) as answer:
                if answer.status != 200 and answer.status not in allow:
                    said = " ".join((await answer.text()).split())[:300]
                    raise self._failed(
                        f"HTTP {answer.status} ({said})", path, "see the server's log"
                    )
                yield answer
        except aiohttp.ConnectionTimeoutError as error:
            raise self._failed(
                f"no connection in {_CONNECT_S:g} s", path, "check the address"
            ) from error
        except TimeoutError as error:
            raise self._failed(
                f"no byte for {self._silence_s:g} s", path, "raise --timeout-s"
            ) from error
        except (aiohttp.ClientError, aiohttp.InvalidURL, OSError) as error:
            raise self._failed(
                f"no connection ({error or type(error).__name__})",
                path,
                "start the server, or see its log for why it ended",
            ) from error

    def _event(self, line: bytes) -> dict[str, Any] | None:
        line = line.strip()
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            return None
        try:
            event: dict[str, Any] = orjson.loads(line[6:])
        except orjson.JSONDecodeError as error:
            raise self._failed(
                f"an answer cut off after {line[-40:]!r}",
                "/generate",
                "see the server's log for why it ended",
            ) from error
        reason = event.get("meta_info", {}).get("finish_reason") or {}
        if "meta_info" not in event or reason.get("type") == "abort":
            said = event.get("error") or reason
            raise self._failed(
                f"a refused request ({said.get('message')})",
                "/generate",
                "see the server's log",
            )
        return event

    def _require_whole(self, streamed: Streamed, tokens: int, wanted: int) -> None:
        if tokens != wanted or not streamed.meta.get("finish_reason"):
            raise self._failed(
                f"an answer that ended after {tokens} of {wanted} tokens",
                "/generate",
                "see the server's log",
            )

    def _failed(self, found: str, path: str, way_out: str) -> ServerFailed:
        wanted = "an SGLang server that answers"
        return ServerFailed(
            refusal(found=found, wanted=wanted, origin=self.url + path, way_out=way_out)
        )


def _body(input_ids: list[int], answer_tokens: int) -> bytes:
    sampling = {"temperature": 0, "max_new_tokens": answer_tokens, "ignore_eos": True}
    return orjson.dumps(
        {"input_ids": input_ids, "sampling_params": sampling, "stream": True}
    )


def _collect(streamed: Streamed, event: dict[str, Any]) -> None:
    """Take the event's tokens: all so far, or (incremental streaming) the new ones."""
    streamed.meta = event["meta_info"]
    ids = event.get("output_ids") or []
    if len(ids) == streamed.meta["completion_tokens"]:
        streamed.output_ids = ids
    else:
        streamed.output_ids = [*streamed.output_ids, *ids]
