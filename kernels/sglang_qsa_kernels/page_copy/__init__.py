"""Records between scattered rows of many tensors and pinned host memory, in one launch.

A record is cut into pieces; a table says where each piece lies. A plan says which
records move. Two kinds of records share a launch, A first.

All three are int64:

* pieces `[pieces, 6]`: device address in row 0, bytes from row to row, host address in
  record 0, bytes from record to record, bytes of the piece, indices to a row;
* parts `[parts, 4]`: first piece of A and the one after its last, and those of B;
* plan `[1 + moves, 3]`, in pinned memory: number of moves of A, of B, and of those that
  lie before B's; then for each move its index on the host, the address of its device
  index, and of a second one or 0.

Addresses are multiples of 16, and so are the bytes of a piece. An index, int64, divided
by the indices to a row is the row or record: pages are named by their first token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang_qsa_kernels.page_copy.kernel import page_copy_kernel

PIECE_FIELDS, MOVE_FIELDS = 6, 3
INDEX_BYTES = 8
"""From one device index to the next."""
LARGEST_PIECE = 16_384
"""Bytes that one program holds in registers at a time."""
_PROGRAMS, _WARPS = 32, 8
"""Measured on an H200: the link is full with fewer; more take multiprocessors from
the forward that runs beside."""
_WORDS = LARGEST_PIECE // 8
_NO_HOOKS = (None, None, None)
"""Of profilers: what they are told, before a launch and after it."""

Launch = Callable[[int, int, int], None]
"""Address of a plan, part, and the handle of a stream."""


def prepare(pieces: torch.Tensor, parts: torch.Tensor, *, to_host: bool) -> Launch:
    """Compile for one direction and one table.

    The launch skips what Triton's own call does for each argument and for profilers: it
    is made by a scheduler, whose caches are cold.

    Args:
        pieces, parts: as above, on the GPU, and for as long as launches go on.
    """
    constants = (to_host, _WORDS, PIECE_FIELDS, MOVE_FIELDS)
    names = ("TO_HOST", "WORDS", "PIECE", "MOVE")
    compiled = page_copy_kernel.warmup(
        pieces,
        parts,
        pieces,
        0,
        **dict(zip(names, constants, strict=True)),
        grid=(_PROGRAMS,),
        num_warps=_WARPS,
    )
    run = compiled.run  # before `function`, which this loads
    before = (compiled.function, compiled.packed_metadata, *_NO_HOOKS)
    addresses = (pieces.data_ptr(), parts.data_ptr())

    def launch(plan: int, part: int, stream: int) -> None:
        run(_PROGRAMS, 1, 1, stream, *before, *addresses, plan, part, *constants)

    return launch
