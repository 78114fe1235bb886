"""The client of running servers: its connections."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.radix_cache import client
from benchmarks.radix_cache.client import Server

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def answer_once(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Keep the connection open, and close it when a second request comes."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER)
    await reader.read(1)
    writer.close()


async def pause_between_requests() -> None:
    listening = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    server = Server(f"http://{host}:{port}", silence_s=5)
    try:
        await server.counters()
        await asyncio.sleep(2 * client._IDLE_S)
        await server.flush()
    finally:
        await server.close()
        listening.close()


def test_an_idle_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_IDLE_S", 0.2)
    asyncio.run(pause_between_requests())
