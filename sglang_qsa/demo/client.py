"""Requests to SGLang's native endpoint, with where the prompt was served from."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Generation:
    """A greedy continuation of one prompt."""

    prompt_tokens: int
    device_tokens: int
    """Prompt tokens found in the server's own memory pools."""
    host_tokens: int
    """Prompt tokens restored from host memory."""
    storage_tokens: int
    """Prompt tokens restored from an external tier."""
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the output tokens, as printed by the server: equal floats are equal bits."""
    seconds: float
    accepted_drafts: tuple[int, ...] = ()
    """Verify steps by the drafts that they accepted: those with 0, with 1 and so on.
    Empty without speculative decoding."""

    @property
    def recomputed_tokens(self) -> int:
        cached = self.device_tokens + self.host_tokens + self.storage_tokens
        return self.prompt_tokens - cached


def generate(
    url: str,
    input_ids: Sequence[int],
    *,
    max_new_tokens: int = 8,
    timeout_s: float = 300.0,
) -> Generation:
    """Continue `input_ids` greedily by exactly `max_new_tokens` tokens.

    Raises:
        OSError: no answer in time, or an HTTP error.
    """
    body = {
        "input_ids": list(input_ids),
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": max_new_tokens,
            "ignore_eos": True,
        },
        "return_logprob": True,
    }
    started = time.monotonic()
    answer = json.loads(_post(f"{url}/generate", json.dumps(body), timeout_s))
    return _parse(answer["meta_info"], time.monotonic() - started)


def flush_cache(url: str, timeout_s: float = 30.0) -> None:
    """Drop every prefix from the server's device and host memory.

    Raises:
        OSError: no answer, or requests were still running.
    """
    _post(f"{url}/flush_cache", "", timeout_s)


def get_json(url: str, timeout_s: float = 10.0) -> Any:
    """The JSON document at `url`.

    Raises:
        OSError: no answer, or an HTTP error.
    """
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return json.load(answer)


def _parse(meta: dict[str, Any], seconds: float) -> Generation:
    by_tier = meta.get("cached_tokens_details") or {}
    output = meta["output_token_logprobs"]
    return Generation(
        prompt_tokens=meta["prompt_tokens"],
        device_tokens=by_tier.get("device", 0),
        host_tokens=by_tier.get("host", 0),
        storage_tokens=by_tier.get("storage", 0),
        output_ids=tuple(token for _, token, *_ in output),
        logprobs=tuple(logprob for logprob, *_ in output),
        seconds=seconds,
        accepted_drafts=tuple(meta.get("spec_correct_drafts_histogram") or ()),
    )


def _post(url: str, body: str, timeout_s: float) -> bytes:
    request = urllib.request.Request(
        url, body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
    return content
