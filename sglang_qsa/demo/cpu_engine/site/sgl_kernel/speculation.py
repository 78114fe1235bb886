"""Functions of speculative decoding that SGLang imports on a CPU.

cache_move.py:10, cache_locs.py:28, eagle.py:10 and spec_tree.py:40. Names and
parameters are those of the call sites. Drafts are chains: Qwen4Exp refuses a tree
(`speculative_eagle_topk` above 1) on every device.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy rows inside every layer's buffer: all are read before one is written."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + row * row_bytes, row_bytes) for row in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * row_bytes, row, row_bytes)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """The first `topk * num_cols` token slots of each request behind its end."""
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_cols)
    slots = req_to_token[req_pool_indices.long()[:, None], columns]
    out_cache_loc.copy_(slots.reshape(-1))


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The token slots `[start, end)` of each request, back to back."""
    slots = [
        req_to_token[request, start:end]
        for request, start, end in _spans(req_pool_indices, start_offset, end_offset)
    ]
    packed = torch.cat(slots)
    out_cache_loc[: len(packed)] = packed


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The reverse of `assign_extend_cache_locs_cpu`."""
    read = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[read : read + end - start]
        req_to_token[request, start:end] = slots.to(req_to_token.dtype)
        read += end - start


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """The last accepted token of each request's `accept_stride` candidates."""
    rows = accept_tokens.reshape(-1, accept_stride)
    last = accept_lens.long()[:, None] - 1
    bonus_tokens.copy_(rows.gather(1, last)[:, 0])


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """The links of a chain: every token's only child is the one after it.

    `tree_mask` is left alone: QSA keeps to its own selection and reads no mask.
    """
    _only_chains(topk, depth, draft_token_num)
    steps = torch.arange(draft_token_num)
    positions.copy_((verified_seq_len.long()[:, None] + steps).reshape(-1))
    retrieve_index.copy_(torch.arange(retrieve_index.numel()).view_as(retrieve_index))
    retrieve_next_token.copy_(torch.where(steps + 1 < draft_token_num, steps + 1, -1))
    retrieve_next_sibling.fill_(-1)


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    target_predict: torch.Tensor,
    **_links: Any,
) -> None:
    """Accept drafts while each is what the target predicts after the one before it.

    Args:
        predicts: [requests * drafts], gets the target's tokens up to and including
            the one after the last accepted draft.
        accept_index: [requests, depth + 1], gets indices into `predicts`, the root
            first; the rest keeps its -1.
        accept_token_num: [requests], gets the accepted drafts without the root.
        candidates: [requests, drafts], the root first.
        target_predict: [requests, drafts], what follows each of `candidates`.
    """
    requests, width = candidates.shape
    agrees = candidates[:, 1:].long() == target_predict[:, :-1].long()
    accepted = agrees.long().cumprod(dim=1).sum(dim=1)
    accept_token_num.copy_(accepted)
    steps = torch.arange(width)
    kept = steps <= accepted[:, None]
    slots = torch.arange(requests * width).view(requests, width)
    accept_index.copy_(torch.where(kept, slots, -1)[:, : accept_index.shape[1]])
    predicts[slots[kept]] = target_predict[kept].to(predicts.dtype)


def _only_chains(topk: int, depth: int, draft_token_num: int) -> None:
    if topk != 1 or draft_token_num != depth + 1:
        raise NotImplementedError("the CPU engine drafts chains of all steps only")


def _spans(
    requests: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> zip[tuple[int, int, int]]:
    return zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True)
