"""Let the LMCache daemon map a pool's memory without re-pointing a view.

lmcache/v1/platform/devices/cpu/shm.py:293 copies a tensor's storage into a shared
segment and calls `tensor.set_` on the one view it was handed. SGLang hands over
views: the pool keeps its old memory, every transfer succeeds, and the bytes go
nowhere. Torch can move a storage in place instead, so every alias follows.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_HEADER_BYTES = 64
"""Torch keeps a reference count in front of the data (RefcountedMapAllocator)."""


def share_in_place(tensor: torch.Tensor) -> str:
    """Move the storage behind `tensor` to shared memory; return the segment's name.

    Safe to repeat, and for any view of one storage: torch swaps the memory under
    the storage object that all aliases share. Addresses taken before are stale.
    """
    _manager, name, _nbytes = tensor.untyped_storage()._share_filename_cpu_()
    decoded: str = name.decode()
    return decoded


def apply(module: ModuleType) -> None:
    from lmcache.v1.gpu_connector.kv_format.contiguity import (
        attempt_permute_to_contiguous_view,
    )

    def describe(tensor: torch.Tensor) -> Any:
        view = attempt_permute_to_contiguous_view(tensor)
        if view.numel() == 0:
            return module.CpuShmTensorWrapper(view, "")
        name = share_in_place(view)
        segment_nbytes = _HEADER_BYTES + view.untyped_storage().nbytes()
        wrapper = module.CpuShmTensorWrapper(view, name, segment_nbytes)
        wrapper.storage_offset += _HEADER_BYTES // view.element_size()
        return wrapper

    module.migrate_to_shm_and_wrap = describe  # type: ignore[attr-defined]
