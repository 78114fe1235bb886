"""A server that answers generated problems at once, and tells where prompts came from.

It keeps a device and a tier as sets of prompts. Its faults are switches.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.gsm8k.generated import problems

PROMPT_TOKENS = 320
DEVICE_PROMPTS = 40


@dataclass
class Fake:
    """What it holds, and how it misbehaves."""

    url: str
    device: dict[str, None] = field(default_factory=dict)
    """As a queue: the oldest of more than `DEVICE_PROMPTS` are forgotten."""
    tier: set[str] = field(default_factory=set)
    has_tier: bool = True
    tells_sources: bool = True
    wrong_from_tier: bool = False
    wrong_always: bool = False
    wrong_from_device: int = 0
    """Of all questions, how many get a wrong answer on a device hit."""
    noisy: bool = False
    """Each output has a token that none had before."""
    dies_after: int | None = None
    """Answers before each connection is dropped without a word."""
    acceptance_from_tier: int | None = None
    """Accepted of 100 drafts on prompts from the tier; on others 80."""
    delay_s: float = 0.0
    meeting: threading.Barrier | None = None
    """No request is answered before so many are under way."""
    lost: set[str] = field(default_factory=set)
    answered: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def dead(self) -> bool:
        return self.dies_after is not None and self.answered >= self.dies_after

    def answer(self, prompt: str) -> dict[str, Any]:
        """Where the prompt is, what it says, and what is reported about it."""
        with self.lock:
            self.answered += 1
            source = self._source(prompt)
            self.device[prompt] = None
            if len(self.device) > DEVICE_PROMPTS:
                del self.device[next(iter(self.device))]
            if self.has_tier:
                self.tier.add(prompt)
        wrong = self.wrong_always or (self.wrong_from_tier and source == "storage")
        if source == "device":
            self.lost.add(prompt)
            wrong |= len(self.lost) <= self.wrong_from_device
        number = _expected(prompt) + wrong
        accepted = self.acceptance_from_tier if source == "storage" else 80
        return {
            "text": f"It is \\boxed{{{number}}}",
            "output_ids": [7, 8, number, self.answered if self.noisy else 0],
            "cached": {source: PROMPT_TOKENS - 64} if source else None,
            "drafts": None
            if self.acceptance_from_tier is None
            else {"spec_num_proposed_drafts": 100, "spec_num_correct_drafts": accepted},
        }

    def _source(self, prompt: str) -> str:
        if prompt in self.device:
            return "device"
        return "storage" if prompt in self.tier else ""


_ANSWERS = {
    problem["problem"]: problem["expected_answer"]
    for seed in range(3)
    for problem in problems(200, seed)
}


def _expected(prompt: str) -> int:
    last = max(_ANSWERS, key=prompt.rfind)
    return _ANSWERS[last]


@contextmanager
def fake_server() -> Iterator[Fake]:
    """One on a free port, for the length of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.fake = Fake(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.fake  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def fake(self) -> Fake:
        fake: Fake = self.server.fake  # type: ignore[attr-defined]
        return fake

    def log_message(self, *_args: object) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        documents = {
            "/v1/models": {"data": [{"id": "fake", "object": "model"}]},
            "/health": {},
            "/server_info": {"max_total_num_tokens": DEVICE_PROMPTS * PROMPT_TOKENS},
        }
        self._send(documents.get(self.path), 200 if self.path in documents else 404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/flush_cache":
            self.fake.device.clear()
            self._send({})
            return
        if self.fake.dead():
            self.close_connection = True
            return
        with self.fake.lock:
            self.fake.in_flight += 1
            self.fake.most_in_flight = max(
                self.fake.most_in_flight, self.fake.in_flight
            )
        time.sleep(self.fake.delay_s)
        if self.fake.meeting is not None:
            self.fake.meeting.wait(30)
        body = json.loads(raw)
        reply = {
            "/generate": self._native,
            "/v1/completions": self._completion,
            "/v1/chat/completions": self._chat,
        }[self.path](body)
        with self.fake.lock:
            self.fake.in_flight -= 1
        self._send(reply)

    def _native(self, body: dict[str, Any]) -> dict[str, Any]:
        made = self.fake.answer(body["text"])
        return {
            "text": made["text"],
            "output_ids": made["output_ids"],
            "meta_info": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": 3,
                "finish_reason": {"type": "stop"},
                "cached_tokens_details": made["cached"],
                **(made["drafts"] or {}),
            },
        }

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        made = self.fake.answer(body["prompt"])
        choice = {"text": made["text"], "token_ids": made["output_ids"]}
        return self._openai(made, choice, "text_completion")

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        made = self.fake.answer(body["messages"][-1]["content"])
        message = {"role": "assistant", "content": made["text"]}
        choice = {"message": message, "response_token_ids": made["output_ids"]}
        return self._openai(made, choice, "chat.completion")

    def _openai(
        self, made: dict[str, Any], choice: dict[str, Any], kind: str
    ) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 3}
        usage["total_tokens"] = PROMPT_TOKENS + 3
        cached = sum((made["cached"] or {}).values())
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        reply = {
            "id": "1",
            "object": kind,
            "created": 1,
            "model": "fake",
            "choices": [{"index": 0, "finish_reason": "stop", **choice}],
            "usage": usage,
        }
        if self.fake.tells_sources:
            details = {"cached_tokens_details": made["cached"]}
            reply["sglext"] = details | {"spec_tokens_details": made["drafts"]}
        return reply

    def _send(self, document: Any, status: int = 200) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
