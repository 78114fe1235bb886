"""Stand-in for the CUDA wheel `sgl_kernel`, with the operators this model needs.

`mamba` holds the functions that SGLang imports by name on a CPU, `operators`
declares those it reaches through `torch.ops.sgl_kernel`.
"""

from __future__ import annotations

from . import operators  # noqa: F401
