"""Device functions that decode stored words and encode from fp32. See `codec`.

Keys are decoded from 32-bit words. Part p of a word array is the p-th value of every
word, so that two neighbouring words give one register of each part and a matrix
product over the parts, with queries split the same way, needs no value moved.

Hopper's integer pipe has half the rate of the others and limits a decoder that is built
from shifts and masks. e4m3 therefore becomes fp16, for which there is an instruction.
E2M1 has none: its bits move into bf16, where the exponent field as it is leaves values
2^126 too small, subnormals included, so that one multiplication (an fma with -0) makes
them exact.
"""

import triton
import triton.language as tl


@triton.jit
def e4m3_words_to_fp16(words, INTERPRETED: tl.constexpr):
    """int32 words of four e4m3 values to four parts, exact. From capability 8.9."""
    if INTERPRETED:
        return (
            _e4m3_byte(words, 0),
            _e4m3_byte(words, 1),
            _e4m3_byte(words, 2),
            _e4m3_byte(words, 3),
        )
    return tl.inline_asm_elementwise(
        asm="""
        {
        .reg .b32 t;
        .reg .b16 l, h;
        prmt.b32 t, $4, $5, 0x5140;
        mov.b32 {l, h}, t;
        cvt.rn.f16x2.e4m3x2 $0, l;
        cvt.rn.f16x2.e4m3x2 $1, h;
        prmt.b32 t, $4, $5, 0x7362;
        mov.b32 {l, h}, t;
        cvt.rn.f16x2.e4m3x2 $2, l;
        cvt.rn.f16x2.e4m3x2 $3, h;
        }
        """,
        constraints="=&r,=&r,=&r,=&r,r,r",
        args=[words],
        dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def e2m1_words_to_bf16(words, power, INTERPRETED: tl.constexpr):
    """int32 words of eight E2M1 values, times a bf16 power of two, to eight parts."""
    if INTERPRETED:
        return (
            _e2m1_nibble(words, power, 0),
            _e2m1_nibble(words, power, 1),
            _e2m1_nibble(words, power, 2),
            _e2m1_nibble(words, power, 3),
            _e2m1_nibble(words, power, 4),
            _e2m1_nibble(words, power, 5),
            _e2m1_nibble(words, power, 6),
            _e2m1_nibble(words, power, 7),
        )
    return tl.inline_asm_elementwise(
        asm="""
        {
        .reg .b32 a, t, u, c, z, m;
        mov.b32 c, 0x7E807E80;
        mov.b32 z, 0x80008000;
        mov.b32 m, 0x01C001C0;
        prmt.b32 a, $8, $9, 0x4000;
        shr.u32 t, a, 2; and.b32 t, t, m; shl.b32 u, a, 4; and.b32 u, u, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $0, t, $10, z;
        shr.u32 t, a, 6; and.b32 t, t, m; and.b32 u, a, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $1, t, $10, z;
        prmt.b32 a, $8, $9, 0x5010;
        shr.u32 t, a, 2; and.b32 t, t, m; shl.b32 u, a, 4; and.b32 u, u, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $2, t, $10, z;
        shr.u32 t, a, 6; and.b32 t, t, m; and.b32 u, a, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $3, t, $10, z;
        prmt.b32 a, $8, $9, 0x6020;
        shr.u32 t, a, 2; and.b32 t, t, m; shl.b32 u, a, 4; and.b32 u, u, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $4, t, $10, z;
        shr.u32 t, a, 6; and.b32 t, t, m; and.b32 u, a, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $5, t, $10, z;
        prmt.b32 a, $8, $9, 0x7030;
        shr.u32 t, a, 2; and.b32 t, t, m; shl.b32 u, a, 4; and.b32 u, u, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $6, t, $10, z;
        shr.u32 t, a, 6; and.b32 t, t, m; and.b32 u, a, z;
        or.b32 t, t, u; fma.rn.bf16x2 t, t, c, z; fma.rn.bf16x2 $7, t, $10, z;
        }
        """,
        constraints="=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
        args=[words, power],
        dtype=(
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
        ),
        is_pure=True,
        pack=2,
    )


@triton.jit
def e8m0_to_bf16(exponent):
    """E8M0 (int32) to its power of two. 255 becomes infinity: NaN times a zero code."""
    return (exponent << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _e4m3_byte(words, PART: tl.constexpr):
    byte = ((words >> (8 * PART)) & 255).to(tl.uint8)
    return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(tl.float16)


@triton.jit
def _e2m1_nibble(words, power, PART: tl.constexpr):
    code = (words >> (4 * PART)) & 15
    exponent = (code >> 1) & 3
    mantissa = code & 1
    normal = ((exponent + 126) << 23) | (mantissa << 22)
    bits = tl.where(exponent == 0, mantissa * (126 << 23), normal) | ((code & 8) << 28)
    value = bits.to(tl.float32, bitcast=True)
    return (value * power.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def bf16_to_fp32(x):
    """By moving the bits: the interpreter's cast turns denormals into zeros."""
    bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def row_scale(x, AXIS: tl.constexpr):
    """fp32 rows to their e4m3 scale: amax / 448, NaN where a value is not finite."""
    size = tl.abs(x)
    infinity = float("inf")
    amax = tl.max(tl.where(size < infinity, size, infinity), AXIS)
    scale = tl.maximum(tl.div_rn(amax, 448.0), 1.1754943508222875e-38)
    return tl.where(amax < infinity, scale, float("nan"))


@triton.jit
def fp32_to_e4m3(x, scale, INTERPRETED: tl.constexpr):
    """x / scale rounded once to e4m3, as uint8; NaN where the scale is."""
    y = tl.div_rn(x, scale)
    bad = y != y
    y = tl.minimum(tl.maximum(tl.where(bad, 0.0, y), -448.0), 448.0)
    if INTERPRETED:
        code = _round_to_e4m3(y)
    else:
        code = y.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(bad, 127, code.to(tl.int32)).to(tl.uint8)


@triton.jit
def _round_to_e4m3(y):
    size = tl.abs(y)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # One ulp of fp32 at 2^14 is one step of e4m3 below 2^-6.
    subnormal = (size + 16384.0).to(tl.int32, bitcast=True) - (141 << 23)
    code = tl.where(size < 0.015625, subnormal, normal)
    return code | ((y.to(tl.int32, bitcast=True) >> 24) & 0x80)


@triton.jit
def group_exponent(amax):
    """amax of a group, infinite if a value is not finite, to its E8M0 exponent."""
    bits = amax.to(tl.int32, bitcast=True)
    # 6 = 1.5 * 2^2: a mantissa above 1.5 needs the next power of two.
    exponent = (bits >> 23) - 2 + ((bits & 0x7FFFFF) > 0x400000).to(tl.int32)
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    return tl.where(amax < float("inf"), exponent, 255)


@triton.jit
def fp32_to_e2m1(x, exponent):
    """x over its group's power of two, rounded to a 4-bit code; 0 where that is NaN."""
    inverse = ((254 - tl.minimum(exponent, 253)) << 23).to(tl.float32, bitcast=True)
    y = tl.abs(x * inverse)
    code = (y > 0.25).to(tl.int32) + (y >= 0.75).to(tl.int32)
    code += (y > 1.25).to(tl.int32) + (y >= 1.75).to(tl.int32)
    code += (y > 2.5).to(tl.int32) + (y >= 3.5).to(tl.int32) + (y > 5.0).to(tl.int32)
    code |= (x.to(tl.int32, bitcast=True) >> 28) & 8
    return tl.where(exponent == 255, 0, code)
