"""What `linker_extra_config` may say, and how a launch names the linker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sglang_qsa.errors import ConfigError, refusal

MODULE, CLASS = "sglang_qsa.tiers.linker.linker", "RecordLinker"
ORIGIN = "--unified-cache-external-linker-config, linker_extra_config"


@dataclass(frozen=True, slots=True)
class LinkerOptions:
    """Where records go, and how many bytes of them."""

    directory: Path
    budget_bytes: int | None
    """None for no limit."""

    @classmethod
    def parse(cls, extra: dict[str, Any]) -> Self:
        """Read `directory`, and `budget_gb` of 10⁹ bytes.

        Raises:
            ConfigError: something is missing, unknown or of the wrong type.
        """
        if unknown := sorted(extra.keys() - {"directory", "budget_gb"}):
            raise _refused(f"{unknown}", "directory and budget_gb")
        directory, budget_gb = extra.get("directory"), extra.get("budget_gb")
        if not isinstance(directory, str) or not directory:
            raise _refused(f"directory {directory!r}", "the path of a directory")
        number = isinstance(budget_gb, int | float) and not isinstance(budget_gb, bool)
        if budget_gb is not None and not (number and budget_gb > 0):
            raise _refused(f"budget_gb {budget_gb!r}", "a number above 0")
        limit = None if budget_gb is None else int(budget_gb * 10**9)
        return cls(Path(directory), limit)


def is_ours(config: Any) -> bool:
    """Whether `--unified-cache-external-linker-config` names this linker."""
    named = config if isinstance(config, dict) else {}
    return (named.get("linker_module_path"), named.get("linker")) == (MODULE, CLASS)


def _refused(found: str, wanted: str) -> ConfigError:
    return ConfigError(
        refusal(found=found, wanted=wanted, origin=ORIGIN, way_out="correct it")
    )
