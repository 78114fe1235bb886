"""Fill the slots of second states: GDN and conv states, PLE windows, n-gram windows.

A second state lies inside its forward, a whole number of kernel chunks after the start.
Everything it consists of passes by there: the kernels' state before each chunk, and the
inputs of every convolution. Nothing is computed that a forward without it would not.

The sources are those from which upstream (sglang 0.5.23) takes a state inside a
forward: `GDNAttnBackend` for the first two, the PLE layer and the end of the model for
the windows. Each is asked for rows more, or followed by one more copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sglang_qsa.hooks.base import Binding, Hook, wrap
from sglang_qsa.hooks.second import Part, SecondState, held

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class SecondRows:
    """The second states of one forward, one entry each in all lists.

    `slots` is [n] int64; windows and offsets go to its device once per forward.
    """

    states: list[SecondState]
    rows: list[int]
    """Of the batch."""
    offsets: list[int]
    """Tokens from the start of the row to the state; multiples of the kernel chunk."""
    starts: list[int]
    """Tokens of the packed batch before the row."""
    chunks: list[int]
    """Place of the state among the kernels' states before each chunk."""
    slots: torch.Tensor
    _on_device: dict[object, torch.Tensor] = field(default_factory=dict)

    def filled(self, part: Part) -> None:
        """Note that this forward fills `part` of each."""
        for state in self.states:
            state.filled.add(part)

    def to_device(self, name: object, values: Sequence[int]) -> torch.Tensor:
        """[n] int64, copied once under this name."""
        import torch

        if name not in self._on_device:
            pinned = torch.tensor(
                values, dtype=torch.int64, pin_memory=self.slots.is_cuda
            )
            self._on_device[name] = pinned.to(self.slots.device, non_blocking=True)
        return self._on_device[name]

    def windows(self, width: int) -> torch.Tensor:
        """[n, width] positions in the packed batch of the last tokens before each."""
        import torch

        name = "window", width
        if name not in self._on_device:
            ends = [s + o for s, o in zip(self.starts, self.offsets, strict=True)]
            columns = torch.arange(-width, 0, device=self.slots.device)
            self._on_device[name] = self.to_device("end", ends)[:, None] + columns
        return self._on_device[name]


class _TrackedRows(list[bool]):
    """Upstream's list of the rows with a state; it passes from copy to copy of a
    forward batch, where an attribute of the batch would be lost."""

    second: SecondRows


def carried(forward_batch: Any) -> SecondRows | None:
    """The second states that this forward takes, if any."""
    tracked = forward_batch.mamba_prefill_track_mask_cpu
    return tracked.second if isinstance(tracked, _TrackedRows) else None


def carry(
    original: Callable[..., Any], cls: type, batch: Any, runner: Any, **options: Any
) -> Any:
    """Hand the second states of the batch's requests to its forward."""
    forward_batch = original(cls, batch, runner, **options)
    tracked = forward_batch.mamba_prefill_track_mask_cpu
    extends = batch.forward_mode.is_extend_without_speculative()
    # A draft model sees the same batch, one token on.
    if tracked and extends and not runner.is_draft_worker:
        second = _rows(batch)
        if second is not None:
            forward_batch.mamba_prefill_track_mask_cpu = _TrackedRows(tracked)
            forward_batch.mamba_prefill_track_mask_cpu.second = second
    return forward_batch


def _rows(batch: Any) -> SecondRows | None:
    import torch
    from sglang.srt.runtime_context import mamba_cache_chunk_size

    found = [
        (row, second)
        for row, (req, start) in enumerate(
            zip(batch.reqs, batch.prefix_lens, strict=True)
        )
        if (second := held(req)) is not None and second.start == start
    ]
    if not found:
        return None
    size = mamba_cache_chunk_size()
    starts = list(accumulate(batch.extend_lens, initial=0))
    chunks = list(accumulate((-(-n // size) for n in batch.extend_lens), initial=0))
    offsets = [second.depth - second.start for _, second in found]
    rows = [row for row, _ in found]
    return SecondRows(
        [second for _, second in found],
        rows,
        offsets,
        [starts[row] for row in rows],
        [chunks[row] + o // size for row, o in zip(rows, offsets, strict=True)],
        torch.cat([second.slot for _, second in found]),
    )


def gdn_rows(original: Callable[..., None], backend: Any, forward_batch: Any) -> None:
    """Ask upstream's copies of conv and GDN states for the second ones too."""
    import torch

    original(backend, forward_batch)
    second = carried(forward_batch)
    if second is None:
        return
    # As upstream does with its own: pools may number their slots twice.
    second.slots = backend._translate_mamba_indices(second.slots)
    metadata = backend.forward_metadata
    windows = second.windows(backend.conv_states_shape[-1])
    for name, more in (
        ("track_ssm_h_src", second.to_device("chunk", second.chunks)),
        ("track_ssm_h_dst", second.slots),
        ("track_conv_indices", windows),
        ("conv_states_mask_indices", second.slots),
    ):
        rows = getattr(metadata, name)
        setattr(metadata, name, torch.cat([rows, more.to(rows.dtype)]))
    second.filled(Part.GDN)


def ple_windows(
    original: Callable[..., Any], layer: Any, x: Any, forward_batch: Any, batch: Any
) -> Any:
    """Keep the inputs of a PLE layer's short convolution before each second state."""
    out = original(layer, x, forward_batch, batch)
    second = carried(forward_batch)
    if second is not None and batch.processed_tokens:
        from sglang.srt.model_executor.forward_context import get_req_to_token_pool

        windows = get_req_to_token_pool().short_conv_layer_cache(layer.layer_id)
        inputs = x[second.windows(layer.short_conv_state_len)]
        windows[second.slots] = inputs.transpose(1, 2).to(windows.dtype)
        second.filled(Part.PLE)
    return out


def ngram_windows(
    original: Callable[..., None], batch: Any, forward_batch: Any
) -> None:
    """Keep the token ids before each second state."""
    import torch

    original(batch=batch, forward_batch=forward_batch)
    second = carried(forward_batch)
    if second is None or batch is None or batch.ngram_context is None:
        return
    from sglang.srt.model_executor.forward_context import get_req_to_token_pool

    # History and tokens of each row: the window of a depth starts at that column.
    context = batch.ngram_context[second.to_device("row", second.rows)]
    width = batch.ngram_context.shape[1] - batch.row_width
    first = second.to_device("offset", second.offsets)
    columns = first[:, None] + torch.arange(width, device=first.device)
    get_req_to_token_pool().set_ngram_context(second.slots, context.gather(1, columns))
    second.filled(Part.NGRAM)


CARRY = Hook(
    "second-state-carry",
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
    "around",
    carry,
)
GDN_ROWS = Binding(
    "second-state-gdn",
    "sglang.srt.layers.attention.linear.gdn_backend.GDNAttnBackend"
    ".init_forward_metadata",
)
PLE_WINDOWS = Binding(
    "second-state-ple",
    "sglang.srt.models.qwen4_exp.Qwen4ExpPLELayer._short_conv",
)
NGRAM_WINDOWS = Binding(
    "second-state-ngram", "sglang.srt.models.qwen4_exp._commit_ple_batch"
)


def obstacle(runner: Any) -> str:
    """Why the forwards of this model runner cannot give second states; "" if they can.

    Graphs replay what they were captured with. A batch that is divided has other rows
    than the scheduler's. And some kernels return one state of each request, not those
    before every chunk.
    """
    from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
    from sglang.srt.model_executor.cuda_graph_config import Backend
    from sglang.srt.runtime_context import get_exec, get_parallel

    execution, parallel = get_exec(), get_parallel()
    linear = getattr(runner.attn_backend, "linear_attn_backend", None)
    if not isinstance(linear, GDNAttnBackend):
        return f"linear attention by {type(linear).__name__}"
    kernel = linear.kernel_dispatcher.extend_kernel
    prefill_graphs = execution.graph.cuda_graph_config.prefill.backend
    found = {
        f"prefill graphs ({prefill_graphs})": prefill_graphs != Backend.DISABLED,
        "two-batch overlap": execution.overlap.enable_two_batch_overlap,
        "int8 checkpoints": execution.mamba.enable_int8_mamba_checkpoint,
        "lazy snapshot slots": execution.mamba.enable_mamba_extra_buffer_lazy,
        "context parallel attention": parallel.attn_cp_size > 1,
        "DP attention": parallel.attn_dp_size > 1,
        "pipeline parallelism": parallel.pp_size > 1,
        f"prefill kernel {type(kernel).__name__}": (
            kernel.uses_state_checkpoints or kernel.supports_track_state_snapshot
        ),
    }
    return next((name for name, is_there in found.items() if is_there), "")


@functools.cache
def install() -> None:
    """Let the forwards of this process fill second states, for its life."""
    wrap(GDN_ROWS, gdn_rows)
    wrap(PLE_WINDOWS, ple_windows)
    wrap(NGRAM_WINDOWS, ngram_windows)
