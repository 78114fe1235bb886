"""Which weights a cache was computed with, read from the checkpoint files.

Pure: standard library only. A prefix computed with other weights has the same
bytes in every declared size, so nothing but the layout id can keep the two
apart. Reading 180 GB at every start is too slow; a shard's header and evenly
spaced blocks of its data change with any retraining, merge or requantisation.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sglang_qsa.errors import ConfigError, refusal

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
_SAMPLES_PER_FILE = 16
_SAMPLE_BYTES = 4096


def fingerprint_checkpoint(directory: Path) -> str:
    """Digest of `config.json` and of samples of every weight file.

    Files are visited by name, so two copies of one checkpoint agree wherever
    they lie. The head of each file (where safetensors keeps its header) is one of
    the samples.

    Raises:
        ConfigError: `directory` holds no weight files.
    """
    files = sorted(
        file
        for file in directory.iterdir()
        if file.suffix in _WEIGHT_SUFFIXES and file.is_file()
    )
    if not files:
        raise ConfigError(
            refusal(
                found="no weight files",
                wanted=f"at least one of *{', *'.join(_WEIGHT_SUFFIXES)}",
                origin=str(directory),
                way_out="set weights_fingerprint in the plugin's options",
            )
        )
    digest = hashlib.sha256()
    config = directory / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            for sample in range(_SAMPLES_PER_FILE):
                stream.seek(size * sample // _SAMPLES_PER_FILE)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
