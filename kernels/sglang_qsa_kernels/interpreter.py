"""Whether this process runs kernels in Triton's interpreter.

`triton.jit` decides when it decorates, so the answer is fixed at the first import of
Triton: `TRITON_INTERPRET=1` has to be set before it. The interpreter of Triton 3.8
multiplies bf16 operands of `tl.dot` as integers and casts fp32 to e4m3 without the
carry of the mantissa. Kernels take `INTERPRETED` as a `tl.constexpr` and upcast, or
round by integers, where it is set; on a GPU those branches do not exist.
"""

from __future__ import annotations

from typing import Final

import triton

INTERPRETED: Final = bool(triton.knobs.runtime.interpret)
