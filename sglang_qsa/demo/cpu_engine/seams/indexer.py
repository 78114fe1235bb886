"""Give the sparse-attention indexer a CPU entry.

qsa_indexer.py:809-832 defines `forward_cuda` and `forward_xpu` around one
implementation that is plain PyTorch outside CUDA; `MultiPlatformOp` looks for
`forward_native` on a CPU.
"""

from __future__ import annotations

from types import ModuleType


def apply(module: ModuleType) -> None:
    module.QSAIndexer.forward_native = module.QSAIndexer.forward_xpu
