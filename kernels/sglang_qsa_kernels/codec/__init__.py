"""Number formats of stored rows: e4m3 with a row scale, and MXFP4.

| format | stored | one scale | for |
|---|---|---|---|
| e4m3, scaled | 1 B per value | fp32, amax / 448 | a key, or a token and head |
| MXFP4 | E2M1, 4 bits per value | E8M0, 1 B | 32 neighbouring values |

`kernel` holds the device functions, `reference` the same rules in PyTorch; tests
compare their bits.

Rules, for both formats:

* One rounding: the scale is computed in fp32, values are divided by it in fp32 with
  round to nearest, then rounded once to the stored format, ties to even.
* A row or group of zeros has zeros and the smallest scale. The scale of e4m3 never
  falls below `MIN_SCALE`, so rows of denormals lose digits but never divide by zero.
* The MXFP4 exponent is rounded up to the next power of two of amax / 6: nothing is
  clipped. Dimension 2j lies in the low four bits of byte j, 2j + 1 in the high ones.
* A row or group with an infinity or a NaN is stored as NaN as a whole (scale NaN, or
  E8M0 255): it reads as NaN, never as a plausible number.
"""

from __future__ import annotations

from typing import Final

E4M3_MAX: Final = 448.0
MIN_SCALE: Final = 2.0**-126
"""Smallest scale of an e4m3 row: the smallest normal fp32."""
MXFP4_GROUP: Final = 32
"""Values that share one E8M0 exponent."""
E8M0_MIN: Final = 1
E8M0_MAX: Final = 253
"""Least and largest stored exponent of finite values: both 2^(e - 127) and its inverse
are normal in fp32 and bf16."""
E8M0_NAN: Final = 255
E8M0_BIAS: Final = 127
E4M3_NAN: Final = 0x7F
