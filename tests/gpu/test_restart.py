"""A restart with the real shapes on CUDA, bit for bit; run it with `pytest -m gpu`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import torch

from benchmarks import restart

FLAGS = "QSA_GPU_TEST_FLAGS"
"""Variable with flags that this machine's SGLang needs, besides the defaults."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.server,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("tier", ["lmcache", "disk", "linker"])
def test_restored_prompt_has_the_bits_of_a_device_hit(
    tmp_path: Path, tier: str
) -> None:
    options = {"--out": tmp_path, "--tier": tier, "--repeats": 3, "--answer-tokens": 64}
    flat = [str(part) for option in options.items() for part in option]
    flat += ["--prompt-tokens", "8204", "32780"]
    flags = ["--max-total-tokens", "140000", "--max-mamba-cache-size", "64"]
    flags += shlex.split(os.environ.get(FLAGS, ""))
    assert restart.main([*flat, "--", *flags]) == 0
