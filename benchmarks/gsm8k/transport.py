"""Requests over the harness's client, to any of the three interfaces."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.gsm8k import answers, harness
from sglang_qsa.errors import QsaError, refusal

_CUE = "\n\nSolution:\n"
_STOP = ["\n\n\n"]
"""What the harness's prompt has between problem and solution, and after a solution: a
text that is continued needs both to begin and to end its own."""


class NoAnswer(QsaError):
    """A request was refused or its connection broke."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The harness's sample, and what the server reported with it."""

    sample: Any
    report: answers.Report


class Transport:
    """One server. Safe to use from several threads.

    Args:
        url: without `/v1`.
        model: as the server names it; None asks the server.
        logprobs: ask for the log-probabilities of the output too.
        extra: added to the body of every request.
    Raises:
        NoAnswer: the server does not name its models.
    """

    def __init__(
        self,
        url: str,
        api: str,
        *,
        model: str | None,
        max_tokens: int,
        timeout_s: float,
        logprobs: bool,
        extra: Mapping[str, Any],
    ) -> None:
        self.url = url
        self._api = api
        self._last_warning = _LastWarning()
        self._sampler = self._connect(model)
        self._sampler.client = self._sampler.client.with_options(
            max_retries=0, timeout=timeout_s
        )
        self._native = self._sampler.client.with_options(base_url=url)
        body = answers.asked_for(api, logprobs=logprobs) | dict(extra)
        self._gen = replace(harness.defaults(), max_tokens=max_tokens, extra_body=body)

    @property
    def model(self) -> str:
        return str(self._sampler.model)

    def ask(self, prompt: str, max_tokens: int | None = None) -> Generation:
        """Answer one prompt.

        Args:
            max_tokens: in place of the transport's own.
        Raises:
            NoAnswer: with the reason.
        """
        started = time.time()
        gen = self._gen
        if max_tokens is not None:
            gen = replace(gen, max_tokens=max_tokens)
        if self._api == "chat":
            sample = self._chat(prompt, gen)
            response = sample.raw.model_dump()
        else:
            response = self._post(prompt, gen)
            sample = self._as_sample(response)
            sample.generation_start_time = started
            sample.generation_end_time = time.time()
        if sample.finish_reason == "abort":
            raise NoAnswer("the server aborted the request")
        return Generation(sample, answers.from_response(response))

    def abort(self) -> None:
        """Break the requests that are under way; the transport is spent."""
        self._sampler.abort()

    def _connect(self, model: str | None) -> Any:
        try:
            return harness.sampler(f"{self.url}/v1", model, self._last_warning)
        except harness.client_errors() as error:
            raise NoAnswer(
                refusal(
                    found=f"no list of models ({_brief(error)})",
                    wanted="an OpenAI-compatible server",
                    origin=self.url,
                    way_out="start it, or correct --url",
                )
            ) from error

    def _chat(self, prompt: str, gen: Any) -> Any:
        sample = self._sampler([{"role": "user", "content": prompt}], gen)
        if sample.finish_reason == "error":
            reason = sample.raw if sample.raw is not None else self._last_warning.text
            raise NoAnswer(_brief(reason))
        return sample

    def _post(self, prompt: str, gen: Any) -> Mapping[str, Any]:
        text, limit, temperature = prompt + _CUE, gen.max_tokens, gen.temperature
        body: dict[str, Any]
        if self._api == "native":
            client, path = self._native, "/generate"
            sampling = {"temperature": temperature, "max_new_tokens": limit}
            body = {"text": text, "sampling_params": sampling | {"stop": _STOP}}
        else:
            client, path = self._sampler.client, "/completions"
            body = {"prompt": text, "temperature": temperature, "max_tokens": limit}
            body |= {"model": self.model, "stop": _STOP}
        try:
            response: Mapping[str, Any] = client.post(
                path, body=body | gen.extra_body, cast_to=object
            )
        except harness.client_errors() as error:
            raise NoAnswer(_brief(error)) from error
        return response

    def _as_sample(self, response: Mapping[str, Any]) -> Any:
        if "meta_info" in response:
            meta = response["meta_info"]
            finish = (meta.get("finish_reason") or {}).get("type")
            text, tokens = response["text"], meta.get("completion_tokens")
        else:
            choices: Any = response["choices"]
            finish, text = choices[0].get("finish_reason"), choices[0]["text"]
            tokens = (response.get("usage") or {}).get("completion_tokens")
        return harness.sample(text, tokens, finish)


class _LastWarning(logging.Handler):
    """Keeps what the harness's transport logs instead of raising it."""

    text = "no reason given"

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and record.args:
            self.text = str(record.args[-1])


def _brief(reason: object) -> str:
    """One line, without the body of a long HTTP error."""
    line = " ".join(str(reason).split())
    return line if len(line) <= 200 else f"{line[:200]}…"
