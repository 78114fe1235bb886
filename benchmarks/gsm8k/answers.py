"""One answer, with what the server said about where its prompt came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any


class Pass(Enum):
    """Where the prompts of a pass should come from."""

    COLD = "cold"
    DEVICE = "device"
    CONTROL = "device again"
    TIER = "tier"


FIRST = (Pass.COLD, Pass.DEVICE, Pass.CONTROL)
"""The three of pass 1."""

APIS = ("chat", "completion", "native")

_EXTENSIONS = {
    "return_cached_tokens_details": True,
    "return_spec_tokens_details": True,
    "return_token_ids": True,
}
_LOGPROBS: dict[str, dict[str, object]] = {
    "chat": {"logprobs": True},
    "completion": {"logprobs": 1},
    "native": {"return_logprob": True},
}


def asked_for(api: str, *, logprobs: bool) -> dict[str, object]:
    """What a request asks a server to report, as `from_response` reads it."""
    extensions = {} if api == "native" else _EXTENSIONS
    return extensions | (_LOGPROBS[api] if logprobs else {})


@dataclass(frozen=True, slots=True)
class Report:
    """What a server says about one request, beside the text."""

    token_ids: tuple[int, ...]
    """Of the output; empty where the server does not name them."""
    logprobs: tuple[float, ...]
    """Of the output tokens, as printed by the server: equal floats are equal bits."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, from anywhere."""
    device_tokens: int
    tier_tokens: int
    """From host memory and storage; the external linker's count as host memory's."""
    by_source: bool
    """False: no cached tokens, or a server that does not say where they were."""
    drafts_proposed: int
    drafts_accepted: int
    """Of MTP; both 0 where the server does not speculate or does not tell."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question, answered and graded."""

    question: str
    text: str
    report: Report
    correct: bool
    extracted: str | None
    """What the grader took for the answer."""
    finish_reason: str
    seconds: float

    @property
    def output(self) -> Sequence[int] | str:
        """What has to be the same twice: token ids, the text where there are none."""
        return self.report.token_ids or self.text


def to_json(answer: Answer) -> dict[str, Any]:
    return asdict(answer)


def from_json(document: Mapping[str, Any]) -> Answer:
    """The inverse of `to_json`, after a trip through a file."""
    report = dict(document["report"])
    for name in ("token_ids", "logprobs"):
        report[name] = tuple(report[name])
    plain = {field.name: document[field.name] for field in fields(Answer)}
    return Answer(**plain | {"report": Report(**report)})


def from_response(response: Mapping[str, Any]) -> Report:
    """Read an OpenAI chat or text completion, or an answer of `/generate`."""
    if "meta_info" in response:
        meta = response["meta_info"]
        details, drafts, counts = meta.get("cached_tokens_details"), meta, meta
        token_ids = response.get("output_ids")
        logprobs = [first for first, *_ in meta.get("output_token_logprobs") or ()]
        cached = meta.get("cached_tokens")
    else:
        extension = response.get("sglext") or {}
        details = extension.get("cached_tokens_details")
        drafts = extension.get("spec_tokens_details") or {}
        counts = response.get("usage") or {}
        choice = response["choices"][0]
        token_ids = choice.get("response_token_ids") or choice.get("token_ids")
        logprobs = _logprobs(choice.get("logprobs") or {})
        cached = (counts.get("prompt_tokens_details") or {}).get("cached_tokens")
    sources = details or {}
    device = sources.get("device") or 0
    tier = (sources.get("host") or 0) + (sources.get("storage") or 0)
    return Report(
        token_ids=tuple(token_ids or ()),
        logprobs=tuple(logprobs),
        prompt_tokens=counts.get("prompt_tokens") or 0,
        cached_tokens=max(cached or 0, device + tier),
        device_tokens=device,
        tier_tokens=tier,
        by_source=details is not None,
        drafts_proposed=drafts.get("spec_num_proposed_drafts") or 0,
        drafts_accepted=drafts.get("spec_num_correct_drafts") or 0,
    )


def _logprobs(choice: Mapping[str, Any]) -> list[float]:
    """Of a chat, or of a text completion."""
    if "token_logprobs" in choice:
        return [value for value in choice["token_logprobs"] if value is not None]
    return [token["logprob"] for token in choice.get("content") or ()]
