"""End prefill forwards where the planner wants them.

Every cut lies on the grid, so the next forward reaches every later boundary; where one
forward would hold two boundaries worth keeping it ends at the lower one. Upstream
(sglang 0.5.23) cuts a continuation wherever its memory budget ends: the state is then
up to 63 tokens ahead of the key it is published under, and a start off the compressed
groups ends the server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sglang_qsa.boundary import floor, forward_end
from sglang_qsa.hooks import active
from sglang_qsa.hooks.base import Hook

_HIT_LEN = "_qsa_hit_len"


def hit_len(req: Any) -> int | None:
    """Tokens found before the first forward of this request, once it is admitted."""
    found: int | None = getattr(req, _HIT_LEN, None)
    return found


def cut_first_chunk(
    original: Callable[..., Any], adder: Any, req: Any, **facts: Any
) -> Any:
    """Shorten what was admitted to the end that the planner wants."""
    admission = original(adder, req, **facts)
    rule = active.rule()
    if rule is None:
        return admission
    from sglang.srt.managers.schedule_policy import AddReqResult

    if isinstance(admission, AddReqResult):
        return admission
    # Upstream can track one unfinished request.
    tracked = facts.get("has_chunked_req") or adder.new_chunked_req is not None
    if tracked and admission.is_chunked:
        return AddReqResult.OTHER
    setattr(req, _HIT_LEN, admission.prefix_len)
    length = (
        forward_end(
            rule.grid,
            prefix_len=admission.prefix_len,
            limit=admission.prefix_len + admission.extend_len,
            prompt_len=len(req.full_untruncated_fill_ids),
            branch=req.mamba_branching_seqlen,
            may_split=not tracked and _may_split(adder, facts),
        )
        - admission.prefix_len
    )
    if length == admission.extend_len:
        return admission
    return dataclasses.replace(
        admission, extend_len=length, max_new_tokens=0, is_chunked=True
    )


def _may_split(adder: Any, facts: dict[str, Any]) -> bool:
    """Whether chunked prefill is on, with chunks that may have any length."""
    return (
        adder.rem_chunk_tokens is not None
        and facts.get("truncation_align_size") is None
    )


def cut_next_chunk(original: Callable[..., Any], adder: Any, req: Any) -> Any:
    """Limit a continuation to the end that the planner wants."""
    rule = active.rule()
    if rule is not None:
        limit = adder.memory_budget.available_chunk_tokens(adder.rem_chunk_tokens)
        if limit is not None:
            if adder.chunked_req_limit is not None:
                limit = min(limit, adder.chunked_req_limit)
            end = forward_end(
                rule.grid,
                prefix_len=req.prefix_len,
                limit=req.prefix_len + limit,
                prompt_len=len(req.full_untruncated_fill_ids),
                branch=req.mamba_branching_seqlen,
                hit_len=hit_len(req),
            )
            adder.chunked_req_limit = end - req.prefix_len
    return original(adder, req)


def whole_pages(
    original: Callable[..., int | None], budget: Any, chunk_limit: int
) -> int | None:
    """Keep a continuation's memory budget on the grid, and at one step of it.

    Upstream grants a whole chunk where nothing is left, so that the request can go on
    and release its memory; a rest below one page is granted that page.
    """
    tokens = original(budget, chunk_limit)
    rule = active.rule()
    if rule is None or tokens is None:
        return tokens
    return max(floor(tokens, rule.grid.tree_grid), rule.grid.tree_grid)


_POLICY = "sglang.srt.managers.schedule_policy.PrefillAdder"
CUT_FIRST_CHUNK = Hook(
    "chunk-first-cut",
    f"{_POLICY}._select_prefill_admission",
    "around",
    cut_first_chunk,
)
CUT_NEXT_CHUNK = Hook(
    "chunk-next-cut", f"{_POLICY}.add_chunked_req", "around", cut_next_chunk
)
WHOLE_PAGES = Hook(
    "chunk-whole-pages",
    "sglang.srt.mem_cache.prefill_budget.PrefillBudget.available_chunk_tokens",
    "around",
    whole_pages,
)
