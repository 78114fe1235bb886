"""Stand-in for the CUDA wheel `sgl_kernel`, with the operators this model needs.

`mamba` and `speculation` hold the functions that SGLang imports by name on a CPU,
`operators` declares those it reaches through `torch.ops.sgl_kernel`. Any other name
that is imported from here is a function that fails when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from . import operators  # noqa: F401
from .speculation import (  # noqa: F401
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"the CPU engine has no sgl_kernel.{name}")

    return missing
