"""Put the Triton kernels under SGLang's QSA backend, where they are right or faster.

Upstream's selection (sglang 0.5.23) drops candidates at long context and breaks ties by
atomics; with `auto`, `topk` replaces it on every GPU. `score` and `sparse_decode` give
what upstream gives, sooner: `auto` has them where their launch shapes were measured.

The names are bound when a model runner builds its attention backends, before any CUDA
graph is captured. Hooks on them would import the kernels' modules in every process.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from sglang_qsa.config import Switch, load_config
from sglang_qsa.errors import QsaError
from sglang_qsa.geometry import ARCHITECTURE
from sglang_qsa.hooks.base import Binding, Hook, bind, wrap
from sglang_qsa.hooks.launch import refuse

logger = logging.getLogger(__name__)

_OPS = ("topk", "score", "sparse_decode")
_INDEXER = "sglang.srt.layers.attention.qsa.qsa_indexer.QSAIndexer"
TOPK = Binding("kernel-topk", "sglang.kernels.ops.attention.fast_topk.fast_topk")
SCORE = Binding("kernel-score", f"{_INDEXER}.select_decode_tokens")
SCORE_ROWS = Binding("kernel-score-rows", f"{_INDEXER}._forward_impl")
SPARSE_DECODE = Binding(
    "kernel-sparse-decode",
    "sglang.srt.layers.attention.qwen_sparse_attn_backend.QwenSparseAttnBackend"
    "._forward_paged_attention",
)


def install(runner: Any) -> None:
    """Bind the chosen kernels for the life of this process, once."""
    architectures = runner.model_config.hf_config.architectures or ()
    if runner.device != "cuda" or ARCHITECTURE not in architectures:
        return
    try:
        _install_once(runner.gpu_id)
    except QsaError as error:
        raise refuse(error) from None


@functools.cache
def _install_once(gpu_id: int) -> None:
    import torch

    device = torch.device("cuda", gpu_id)
    chosen = choose(device)
    if not any(chosen.values()):
        return
    from sglang_qsa.hooks import qsa_ops

    if chosen["topk"]:
        wrap(TOPK, qsa_ops.fast_topk)
        qsa_ops.warm_up(device)
    if chosen["score"]:
        wrap(SCORE_ROWS, qsa_ops.forward_of_indexer)
        bind(SCORE, qsa_ops.select_decode_tokens)
    if chosen["sparse_decode"]:
        wrap(SPARSE_DECODE, qsa_ops.forward_paged_attention)
    logger.info(
        "sglang_qsa kernels on %s: %s",
        torch.cuda.get_device_name(device),
        ", ".join(f"{op} {'on' if on else 'off'}" for op, on in chosen.items()),
    )


def choose(device: Any) -> dict[str, bool]:
    """Which ops run on this GPU: as the options say, or as was measured on it."""
    options = load_config()
    switches = {name: getattr(options, f"kernel_{name}") for name in _OPS}
    if set(switches.values()) == {Switch.OFF}:
        return dict.fromkeys(_OPS, False)
    from sglang_qsa_kernels.score.tiles import is_measured as score_is_measured
    from sglang_qsa_kernels.sparse_decode.tiles import is_measured as decode_is_measured

    on_auto = {
        "topk": True,
        "score": score_is_measured(device),
        "sparse_decode": decode_is_measured(device),
    }
    chosen = {
        name: on_auto[name] if switch == Switch.AUTO else switch == Switch.ON
        for name, switch in switches.items()
    }
    # The scorer hands its maxima to our selection, not to upstream's.
    chosen["score"] &= chosen["topk"]
    return chosen


INSTALL = Hook(
    "kernels-install",
    "sglang.srt.model_executor.model_runner.ModelRunner.init_attention_backends",
    "before",
    install,
)
