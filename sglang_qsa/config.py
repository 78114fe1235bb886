"""Options of the plugin: one JSON file and environment variables.

`SGLANG_QSA_CONFIG` names the file; `SGLANG_QSA_<FIELD>` overrides one field of it.
Environment beats file beats default. An unknown key or a bad value ends the
launch and names where it came from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from sglang_qsa.admission import MIN_TOKENS
from sglang_qsa.budget import TOKENS_PER_CHECKPOINT
from sglang_qsa.errors import ConfigError, refusal

CONFIG_VARIABLE = "SGLANG_QSA_CONFIG"
ENV_PREFIX = "SGLANG_QSA_"

_LONGEST_S = 86_400.0


class Switch(StrEnum):
    """Whether a kernel is used: as measured on the GPU at hand, or as told."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class QsaConfig:
    """Effective options. All durations are seconds."""

    lookup_timeout_s: float = 2.0
    """A look-up in an external tier that takes longer counts as a miss."""

    retrieve_timeout_s: float = 2.0
    """Longest time the scheduler waits for an external tier to accept a load."""

    register_timeout_s: float = 60.0
    """Longest wait for an external tier to map this server's pools."""

    heartbeat_interval_s: float = 1.0
    """Time between two health probes of an external tier, and their time-out."""

    recovery_backoff_s: float = 5.0
    """Pause after an external tier failed its canary before it is tried again."""

    lmcache_http_url: str = ""
    """Base URL of the LMCache daemon's HTTP server; when set, a daemon of another
    version refuses the launch (its request protocol does not tell its version)."""

    admission_min_tokens: int = MIN_TOKENS
    """A request shorter than this goes to an external tier once another one has sent
    the same tokens; 0 keeps all. One checkpoint costs as much as 4,563 tokens."""

    host_tokens_per_checkpoint: int = TOKENS_PER_CHECKPOINT
    """Tokens of pages in host memory for each checkpoint there."""

    kernel_topk: str = Switch.AUTO
    """Exact selection of blocks, in every phase; `auto` is on."""

    kernel_score: str = Switch.AUTO
    """Stacked scoring of decode and verify rows, where `kernel_topk` is on; `auto` is
    on where its tiles were measured."""

    kernel_sparse_decode: str = Switch.AUTO
    """Attention of decode and verify rows that reads K and V in place; `auto` is on
    where its launch shapes were measured."""

    second_state: str = Switch.AUTO
    """Two checkpoints from one prefill forward where a prompt leaves what is cached;
    `auto` is on where forwards can give them. Without it a fork costs one more."""

    weights_fingerprint: str = ""
    """Overrides the fingerprint read from the checkpoint files; two servers that
    set the same value declare their weights equal."""

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            value = getattr(self, name)
            if not 0 < value <= _LONGEST_S:
                raise ConfigError(
                    refusal(
                        found=f"{value!r}",
                        wanted="seconds, greater than 0 and at most a day",
                        origin=f"option {name}",
                        way_out="correct the value or leave the option out",
                    )
                )
        for name in _SWITCHES:
            if getattr(self, name) not in tuple(Switch):
                raise ConfigError(
                    refusal(
                        found=f"{getattr(self, name)!r}",
                        wanted=f"one of {', '.join(Switch)}",
                        origin=f"option {name}",
                        way_out="correct the value or leave the option out",
                    )
                )
        for name, least in _LEAST_TOKENS.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    refusal(
                        found=f"{getattr(self, name)}",
                        wanted=f"tokens, {least} or more",
                        origin=f"option {name}",
                        way_out="correct the value or leave the option out",
                    )
                )


_DURATIONS = tuple(f.name for f in fields(QsaConfig) if f.name.endswith("_s"))
_LEAST_TOKENS = {"admission_min_tokens": 0, "host_tokens_per_checkpoint": 1}
_SWITCHES = tuple(f.name for f in fields(QsaConfig) if isinstance(f.default, Switch))
_TYPES: dict[str, type] = {
    f.name: str if f.name in _SWITCHES else type(f.default) for f in fields(QsaConfig)
}
_KINDS = {float: "a number", int: "a whole number", str: "a string"}


def load_config(environ: Mapping[str, str] | None = None) -> QsaConfig:
    """Read the options of this process.

    Raises:
        ConfigError: unreadable or malformed file, unknown key, bad value.
    """
    env = os.environ if environ is None else environ
    path = env.get(CONFIG_VARIABLE)
    values = _from_file(Path(path)) if path else {}
    values.update(_from_env(env))
    return QsaConfig(**values)  # type: ignore[arg-type]


def _from_file(path: Path) -> dict[str, object]:
    origin = f"{CONFIG_VARIABLE}={path}"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            refusal(
                found=error.strerror or str(error),
                wanted="a readable JSON file",
                origin=origin,
                way_out=f"create it or unset {CONFIG_VARIABLE}",
            )
        ) from error
    except ValueError as error:
        raise ConfigError(
            refusal(
                found=f"malformed JSON ({error})",
                wanted="a JSON object",
                origin=origin,
                way_out="correct the file",
            )
        ) from error
    if not isinstance(document, dict):
        raise ConfigError(
            refusal(
                found=type(document).__name__,
                wanted="a JSON object",
                origin=origin,
                way_out="put the options between { and }",
            )
        )
    return {key: _checked(key, value, origin) for key, value in document.items()}


def _from_env(env: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, text in env.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        key = variable.removeprefix(ENV_PREFIX).lower()
        value: object = text
        kind = _TYPES.get(key)
        if kind in (float, int):
            with suppress(ValueError):  # _checked reports it with its origin
                value = kind(text)
        values[key] = _checked(key, value, variable)
    return values


def _checked(key: str, value: object, origin: str) -> object:
    wanted = _TYPES.get(key)
    if wanted is None:
        raise ConfigError(
            refusal(
                found=f"unknown option {key!r}",
                wanted=f"one of {', '.join(sorted(_TYPES))}",
                origin=origin,
                way_out="correct or remove it",
            )
        )
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ConfigError(
            refusal(
                found=f"{value!r} for {key}",
                wanted=_KINDS[wanted],
                origin=origin,
                way_out="correct the value",
            )
        )
    return value
