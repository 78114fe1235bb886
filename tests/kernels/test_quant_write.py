"""The quantising writes: every bit of the pools is the reference's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_qsa_kernels.codec.reference import (
    dequantise_e4m3,
    dequantise_mxfp4,
    quantise_e4m3,
    quantise_mxfp4,
)
from sglang_qsa_kernels.quant_write import (
    write_keys_e4m3,
    write_keys_mxfp4,
    write_kv_e4m3,
)
from sglang_qsa_kernels.quant_write.cases import (
    CASES,
    KEY_DIM,
    KV_DIM,
    KV_HEADS,
    Case,
    first_slot,
    rows,
    slots,
)
from sglang_qsa_kernels.quant_write.reference import (
    write_e4m3_reference,
    write_mxfp4_reference,
)

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

Pool = list[torch.Tensor]


def pools(
    case: Case, device: torch.device, *rows_: tuple[torch.dtype, tuple[int, ...]]
) -> tuple[Pool, Pool]:
    """Two equal sets of pools, whose first one's rows are the longest."""
    count = first_slot(case, row_bytes(rows_[0][1])) + case.rows + 2
    sets = [
        [torch.empty((count, *row), dtype=dtype, device=device) for dtype, row in rows_]
        for _ in range(2)
    ]
    return sets[0], sets[1]


def row_bytes(row: tuple[int, ...]) -> int:
    return int(torch.Size(row).numel())


def assert_same_bytes(found: Pool, wanted: Pool, case: Case) -> None:
    """Everywhere; in a pool too large to be poisoned, in the slots written."""
    for one, other in zip(found, wanted, strict=True):
        end = len(one) - 2
        part = slice(end - case.rows, end) if case.far else slice(None)
        same = one[part].view(torch.uint8).equal(other[part].view(torch.uint8))
        assert same, (one[part], other[part])


@each_case
def test_kv_bits(case: Case, device: torch.device) -> None:
    row = (KV_HEADS, KV_DIM)
    k = rows(case, device, heads=KV_HEADS, dim=KV_DIM)
    v = -k.flip(0)
    where = slots(case, device, row_bytes(row))
    e4m3, fp32 = (torch.float8_e4m3fn, row), (torch.float32, (KV_HEADS,))
    found, wanted = pools(case, device, e4m3, e4m3, fp32, fp32)
    write_kv_e4m3(k, v, where, *found)
    write_e4m3_reference(k, where, wanted[0], wanted[2])
    write_e4m3_reference(v, where, wanted[1], wanted[3])
    assert_same_bytes(found, wanted, case)


@each_case
def test_key_bits_e4m3(case: Case, device: torch.device) -> None:
    keys = rows(case, device, heads=1, dim=KEY_DIM)[:, 0]
    where = slots(case, device, KEY_DIM)
    codes = (torch.float8_e4m3fn, (KEY_DIM,))
    found, wanted = pools(case, device, codes, (torch.float32, ()))
    write_keys_e4m3(keys, where, *found)
    write_e4m3_reference(keys, where, *wanted)
    assert_same_bytes(found, wanted, case)


@each_case
def test_key_bits_mxfp4(case: Case, device: torch.device) -> None:
    keys = rows(case, device, heads=1, dim=KEY_DIM)[:, 0]
    where = slots(case, device, KEY_DIM // 2)
    codes = (torch.uint8, (KEY_DIM // 2,))
    found, wanted = pools(case, device, codes, (torch.uint8, (KEY_DIM // 32,)))
    write_keys_mxfp4(keys, where, *found)
    write_mxfp4_reference(keys, where, *wanted)
    assert_same_bytes(found, wanted, case)


def test_e4m3_stays_within_half_a_step() -> None:
    x = (
        torch.randn(50, KEY_DIM, dtype=torch.float64)
        * torch.logspace(-9, 9, 50)[:, None]
    )
    codes, scale = quantise_e4m3(x.bfloat16())
    exact = x.bfloat16().double()
    error = (dequantise_e4m3(codes, scale, torch.float64) - exact).abs()
    # Three bits of mantissa; below 2^-6 of the scale, steps of 2^-9.
    limit = torch.maximum(exact.abs() * 2**-4, scale[:, None].double() * 2**-10)
    assert (error <= limit * (1 + 1e-6)).all()
    assert (codes.float().abs().amax(-1) == 448).all()


def test_mxfp4_never_clips_and_wastes_no_power_of_two() -> None:
    x = torch.randn(50, KEY_DIM) * torch.logspace(-9, 9, 50)[:, None]
    x[0, :32] = 6.0
    x[1, :32] = 6.03125
    packed, exponent = quantise_mxfp4(x.bfloat16())
    amax = x.bfloat16().double().unflatten(1, (-1, 32)).abs().amax(-1)
    power = torch.exp2(exponent.double() - 127)
    assert (amax <= 6 * power).all()
    assert (amax > 3 * power).all()
    assert exponent[0, 0] == 127
    assert exponent[1, 0] == 128
    exact = x.bfloat16().double()
    error = (dequantise_mxfp4(packed, exponent, torch.float64) - exact).abs()
    assert (error <= power.repeat_interleave(32, 1)).all()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_reads_as_nan(value: float) -> None:
    x = torch.ones(2, KEY_DIM)
    x[1, 40] = value
    assert dequantise_e4m3(*quantise_e4m3(x)).isnan().all(-1).tolist() == [False, True]
    read = dequantise_mxfp4(*quantise_mxfp4(x)).isnan()
    assert read.nonzero()[:, 1].tolist() == list(range(32, 64))


def _refused() -> dict[str, tuple[Any, list[torch.Tensor], str]]:
    bf16, e4m3 = torch.bfloat16, torch.float8_e4m3fn
    keys, where = torch.zeros(3, 128, dtype=bf16), torch.ones(3, dtype=torch.int64)
    codes, scale = torch.zeros(9, 128, dtype=e4m3), torch.zeros(9)
    k, pool_ = torch.zeros(3, 2, 256, dtype=bf16), torch.zeros(9, 2, 256, dtype=e4m3)
    scales = torch.zeros(9, 2)
    packed = torch.zeros(9, 64, dtype=torch.uint8)
    exponent = torch.zeros(9, 4, dtype=torch.uint8)
    return {
        "fp32 keys": (
            write_keys_e4m3,
            [keys.float(), where, codes, scale],
            r"write_keys_e4m3: keys: found float32 \[3, 1, 128\]",
        ),
        "a slot too few": (
            write_keys_e4m3,
            [keys, where[:2], codes, scale],
            r"slots: found int64 \[2\] on cpu; wanted int32 or int64 \[3\]",
        ),
        "scales of another pool": (
            write_keys_e4m3,
            [keys, where, codes, scale[:8]],
            r"scale of keys: found float32 \[8, 1\]",
        ),
        "every second value": (
            write_keys_e4m3,
            [keys.repeat(1, 2)[:, ::2], where, codes, scale],
            r"write_keys_e4m3: keys: found \[3, 1, 128\] strides",
        ),
        "every second slot": (
            write_keys_mxfp4,
            [keys, where.repeat(2)[::2], packed, exponent],
            r"write_keys_mxfp4: found .* contiguous slots",
        ),
        "96 values": (
            write_keys_mxfp4,
            [keys[:, :96].contiguous(), where, packed[:, :48], exponent[:, :3]],
            r"write_keys_mxfp4: found .* a power of two",
        ),
        "exponents for groups of 64": (
            write_keys_mxfp4,
            [keys, where, packed, exponent[:, :2]],
            r"exponent: found uint8 \[9, 2\]",
        ),
        "V of another pool": (
            write_kv_e4m3,
            [k, k, where, pool_, torch.stack([pool_] * 2, 1)[:, 0], scales, scales],
            r"write_kv_e4m3: k and v: found .* pool strides",
        ),
    }


@pytest.mark.parametrize("why", _refused())
def test_refuses(why: str) -> None:
    write, arguments, message = _refused()[why]
    with pytest.raises(ValueError, match=message):
        write(*arguments)
