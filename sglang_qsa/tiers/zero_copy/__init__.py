"""HiCache's zero-copy backends, with checkpoints that they can address.

Upstream's host pool of states (sglang 0.5.23) names no address for PLE windows, so that
each backup of this model fails. A record of `tiers.host` is one piece of memory:
`mooncake` stores it as one object, `nixl` as one file.
"""

from __future__ import annotations

BACKENDS = {
    "mooncake": ("sglang_qsa.tiers.zero_copy.mooncake", "CheckpointMooncake"),
    "nixl": ("sglang_qsa.tiers.zero_copy.nixl", "CheckpointNixl"),
}
"""By the name of `--hicache-storage-backend`: module and class in its place."""


def register_backends() -> None:
    """Put these classes where SGLang's factory finds storage backends."""
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    for name, (module, class_name) in BACKENDS.items():
        # The factory warns of a name that is taken.
        StorageBackendFactory._registry.pop(name, None)
        StorageBackendFactory.register_backend(name, module, class_name)
