"""Streams that decode while something else happens, with the time of each token."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from sglang_qsa.demo.story import prompt

TIMEOUT_S = 300.0
BEGUN_TOKENS = 8


class Stream:
    """One streamed generation on a thread of its own.

    Attributes:
        times_s: `time.perf_counter()` at which each chunk of tokens arrived.
    """

    def __init__(self, url: str, input_ids: Sequence[int], new_tokens: int) -> None:
        self.times_s: list[float] = []
        self.error: str | None = None
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=TIMEOUT_S
        )
        self._body = json.dumps(
            {
                "input_ids": list(input_ids),
                "stream": True,
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": new_tokens,
                    "ignore_eos": True,
                },
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the connection: the server aborts the request."""
        self._stopped.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._connection.request(
                "POST", "/generate", self._body, {"Content-Type": "application/json"}
            )
            for line in self._connection.getresponse():
                if self._stopped.is_set():
                    return
                if line.startswith(b"data: {"):
                    self.times_s.append(time.perf_counter())
            self.error = (
                "found an end before that of the schedule; wanted it to go on; raise "
                "--stream-tokens"
            )
        except (OSError, http.client.HTTPException) as error:
            self.error = str(error)
        finally:
            self._connection.close()


@contextmanager
def streaming(
    url: str, streams: int, prompt_tokens: int, new_tokens: int
) -> Iterator[list[Stream]]:
    """Streams that have begun to decode; closed at the end.

    Args:
        prompt_tokens: of the first stream; each further prompt has one more.
        new_tokens: at most; no stream may get as far.
    Raises:
        RuntimeError: one of them ended while it should have run.
    """
    running = [
        Stream(url, prompt(prompt_tokens + number), new_tokens)
        for number in range(streams)
    ]
    for stream in running:
        stream.start()
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while any(len(stream.times_s) < BEGUN_TOKENS for stream in running):
            check(running)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"found streams not begun in {TIMEOUT_S:.0f} s; wanted {streams} "
                    "that decode; see the server's log, or lower --streams"
                )
            time.sleep(0.05)
        yield running
        check(running)
    finally:
        for stream in running:
            stream.stop()


def check(streams: Sequence[Stream]) -> None:
    """Streams run until they are stopped.

    Raises:
        RuntimeError: one of them ended.
    """
    for number, stream in enumerate(streams):
        if stream.error is not None:
            raise RuntimeError(f"stream {number}: {stream.error}")
