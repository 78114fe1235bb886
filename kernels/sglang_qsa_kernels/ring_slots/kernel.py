"""Slots of pending index keys in a ring of several groups. Contract: `ring_slots`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def ring_slots_kernel(
    steps, rows, RATIO: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """`BLOCK` rows of one step: positions, requests, slots and members of it."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    for step in tl.static_range(len(steps)):
        if tl.program_id(1) == step:
            own = steps[step]
            position = tl.load(own[0] + row, mask=inside, other=0)
            # In 64 bits, as the slots are: a request is 32 bits wide.
            base = tl.load(own[1] + row, mask=inside, other=0).to(tl.int64) * WIDTH
            tl.store(own[2] + row, base + position % WIDTH, mask=inside)
            for member in tl.static_range(RATIO):
                at = tl.maximum(position - (RATIO - 1 - member), 0)
                slot = (base + at % WIDTH).to(tl.int32)
                tl.store(own[3] + row * RATIO + member, slot, mask=inside)
