"""Allow `--mamba-radix-cache-strategy extra_buffer` on the CPU.

mamba_hook.py:102 lists the platforms whose kernels can snapshot a state while a
request runs, without the CPU. The reference operators of this engine can. The
other strategy, `no_buffer`, refuses the page size of 64 this model needs.
"""

from __future__ import annotations

from types import ModuleType


def apply(module: ModuleType) -> None:
    module._platform_supports_mamba_cache_extra_buffer = lambda: True  # type: ignore[attr-defined]
