"""Records between scattered rows on the device and pinned host memory.
Contract: `page_copy`."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["part"])
def page_copy_kernel(
    pieces_ptr,
    parts_ptr,
    plan_ptr,
    part,
    TO_HOST: tl.constexpr,
    WORDS: tl.constexpr,
    PIECE: tl.constexpr,
    MOVE: tl.constexpr,
):
    """Copy the pieces of one part, of all moves of the plan; a piece at a time."""
    lanes = tl.arange(0, WORDS)
    first_a = tl.load(parts_ptr + part * 4)
    pieces_a = tl.load(parts_ptr + part * 4 + 1) - first_a
    first_b = tl.load(parts_ptr + part * 4 + 2)
    pieces_b = tl.load(parts_ptr + part * 4 + 3) - first_b
    records_a = tl.load(plan_ptr)
    records_b = tl.load(plan_ptr + 1)
    before_b = tl.load(plan_ptr + 2)
    items_a = records_a * pieces_a
    for item in range(
        tl.program_id(0).to(tl.int64),
        items_a + records_b * pieces_b,
        tl.num_programs(0),
    ):
        of_a = item < items_a
        own = tl.where(of_a, item, item - items_a)
        width = tl.where(of_a, pieces_a, pieces_b)
        record = own // width + tl.where(of_a, 0, before_b)
        piece = pieces_ptr + (tl.where(of_a, first_a, first_b) + own % width) * PIECE
        move = plan_ptr + (1 + record) * MOVE
        device_base = tl.load(piece)
        device_stride = tl.load(piece + 1)
        tokens = tl.load(piece + 5)
        host = tl.load(piece + 2) + tl.load(move) // tokens * tl.load(piece + 3)
        at = tl.load(tl.load(move + 1).to(tl.pointer_type(tl.int64))) // tokens
        device = device_base + at * device_stride
        inside = lanes < tl.multiple_of(tl.load(piece + 4) // 8, 2)
        hosts = tl.multiple_of(host.to(tl.pointer_type(tl.int64)), 16) + lanes
        places = tl.multiple_of(device.to(tl.pointer_type(tl.int64)), 16) + lanes
        if TO_HOST:
            tl.store(hosts, tl.load(places, mask=inside), mask=inside)
        else:
            data = tl.load(hosts, mask=inside)
            tl.store(places, data, mask=inside)
            second = tl.load(move + 2)
            if second != 0:
                too = tl.load(second.to(tl.pointer_type(tl.int64))) // tokens
                also = (device_base + too * device_stride).to(tl.pointer_type(tl.int64))
                tl.store(tl.multiple_of(also, 16) + lanes, data, mask=inside)
