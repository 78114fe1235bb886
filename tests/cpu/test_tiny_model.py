"""The tiny checkpoint: the same bytes everywhere, and nothing in it is idle."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file

from sglang_qsa.demo.tiny_model import INDEX_BUDGET_TOKENS, write_tiny_checkpoint


def test_same_bytes_again(tiny_model: Path, tmp_path: Path) -> None:
    again = write_tiny_checkpoint(tmp_path / "model")
    assert sorted(p.name for p in again.iterdir()) == sorted(
        p.name for p in tiny_model.iterdir()
    )
    for file in again.iterdir():
        assert file.read_bytes() == (tiny_model / file.name).read_bytes(), file.name


def test_written_once(tiny_model: Path) -> None:
    weights = tiny_model / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert write_tiny_checkpoint(tiny_model) == tiny_model
    assert weights.stat().st_mtime_ns == before


def test_other_parameters_replace_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tiny_model.json").write_text(json.dumps({"digest": "older"}))
    (model / "leftover").touch()
    write_tiny_checkpoint(model)
    assert not (model / "leftover").exists()


def test_what_a_cache_can_lose_is_there(tiny_model: Path) -> None:
    config = json.loads((tiny_model / "config.json").read_text())["text_config"]
    assert config["linear_key_head_dim"] != config["linear_value_head_dim"]
    assert config["layer_types"].count("linear_attention") == 6
    assert len(config["layer_types"]) == 8
    assert config["indexer_budget"] == INDEX_BUDGET_TOKENS == 2048
    assert config["max_position_embeddings"] >= 8192


def test_drafts_are_another_checkpoint(
    tiny_model: Path, tiny_model_with_drafts: Path, tmp_path: Path
) -> None:
    """The same bytes again, and names of an MTP layer besides."""
    file = "model.safetensors"
    again = write_tiny_checkpoint(tmp_path / "model", mtp=True)
    assert (again / file).read_bytes() == (tiny_model_with_drafts / file).read_bytes()
    plain, drafting = load_file(tiny_model / file), load_file(again / file)
    assert all(name.startswith("mtp.") for name in drafting.keys() - plain.keys())
    assert plain.keys() < drafting.keys()
    assert all(weight.count_nonzero() > 0 for weight in drafting.values())


def test_no_weight_is_zero(tiny_model: Path) -> None:
    """Transformers itself initialises the n-gram convolution with zeros."""
    weights = load_file(tiny_model / "model.safetensors")
    assert all(weight.count_nonzero() > 0 for weight in weights.values())
