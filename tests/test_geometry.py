"""Model config and server facts give the published sizes, or a refusal."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_qsa.errors import ConfigError
from sglang_qsa.geometry import ARCHITECTURE, ServerFacts, build, read_model_config
from sglang_qsa.layout import DType
from tests.deployments import CONFIG_FILE, layout_of
from tests.messages import assert_refusal

DRAFT_PAGE_BYTES = 135_168


@pytest.fixture
def config() -> dict[str, Any]:
    return read_model_config(CONFIG_FILE)


@pytest.mark.parametrize(
    ("facts", "token", "page", "checkpoint"),
    [
        (ServerFacts(), 25_344, 1_622_016, 115_642_384),
        (ServerFacts(mamba_ssm_dtype="bfloat16"), 25_344, 1_622_016, 59_019_280),
        (ServerFacts(tp_size=2), 13_056, 835_584, 57_913_360),
        (ServerFacts(tp_size=4), 13_056, 835_584, 29_048_848),
        (ServerFacts(draft=True), 27_456, 1_622_016 + DRAFT_PAGE_BYTES, 115_642_384),
        (ServerFacts(qsa_indexer_dtype="fp8_e4m3"), 24_960, 1_597_440, 115_642_384),
        (
            ServerFacts(
                kv_cache_dtype="fp8_e4m3", qsa_indexer_dtype="fp8_e4m3", kv_scales=True
            ),
            12_876,
            824_064,
            115_642_384,
        ),
    ],
    ids=["default", "bf16 state", "tp 2", "tp 4", "draft", "fp8 index", "fp8 scales"],
)
def test_published_sizes(
    facts: ServerFacts, token: int, page: int, checkpoint: int
) -> None:
    layout = layout_of(facts)
    assert layout.token_bytes == token
    assert layout.page_bytes == page
    assert layout.checkpoint_bytes == checkpoint


def test_tokens_are_keys_values_and_index_keys() -> None:
    layout = layout_of(ServerFacts())
    tokens = layout.geometry.page_tokens
    per_token = {p.name: p.record_bytes // tokens for p in layout.page.planes}
    assert per_token["k"] + per_token["v"] == 24_576
    assert per_token["index"] == 768


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    assert layout_of(ServerFacts(tp_size=2)).geometry.kv_heads == 1
    assert layout_of(ServerFacts(tp_size=4)).geometry.kv_heads == 1


def test_layers_by_interval_and_by_type_agree(config: dict[str, Any]) -> None:
    text = config["text_config"]
    types = ["linear_attention"] * 3 + ["qwen_sparse_attention"]
    text["layer_types"] = types * (text["num_hidden_layers"] // len(types))
    by_type = build(config, ServerFacts(), origin="by type")
    assert by_type.geometry.kv_layers == tuple(range(3, 48, 4))
    assert by_type.layout_id == layout_of(ServerFacts()).layout_id


def test_ple_layers_are_counted_from_zero() -> None:
    assert layout_of(ServerFacts()).geometry.ple_layers == (1,)


def test_model_without_ple_has_no_windows(config: dict[str, Any]) -> None:
    config["text_config"]["ple_layer_ids"] = []
    layout = build(config, ServerFacts(), origin="without PLE")
    assert [plane.name for plane in layout.checkpoint.planes] == ["ssm", "conv"]


def test_order_of_keys_does_not_matter(config: dict[str, Any]) -> None:
    backwards = {key: config[key] for key in reversed(config)}
    text = config["text_config"]
    backwards["text_config"] = {key: text[key] for key in reversed(text)}
    assert list(backwards) != list(config)
    layout = build(backwards, ServerFacts(), origin="backwards")
    assert layout.layout_id == layout_of(ServerFacts()).layout_id


def test_config_is_not_changed(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    build(config, ServerFacts(tp_size=2), origin="a config")
    assert config == before


def test_flat_config_is_read_too(config: dict[str, Any]) -> None:
    flat = config["text_config"] | {"architectures": [ARCHITECTURE]}
    layout = build(flat, ServerFacts(), origin="flat")
    assert layout.layout_id == layout_of(ServerFacts()).layout_id


@pytest.mark.parametrize(
    "place", ["text_config", "top level"], ids=["text", "top level"]
)
def test_model_dtype_decides_auto(config: dict[str, Any], place: str) -> None:
    del config["text_config"]["dtype"]
    owner = config["text_config"] if place == "text_config" else config
    owner["torch_dtype"] = "float16"
    geometry = build(config, ServerFacts(), origin="float16").geometry
    assert geometry.kv_dtype is DType.FP16
    assert geometry.index_dtype is DType.BF16


@pytest.mark.parametrize(
    "name",
    [
        "num_hidden_layers",
        "num_key_value_heads",
        "head_dim",
        "hidden_size",
        "hc_count",
        "eos_token_id",
        "ngram_size",
        "ple_conv_kernel_size",
        "indexer_budget",
        "indexer_compress_ratio",
        "indexer_head_dim",
        "indexer_kv_heads",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
    ],
)
@pytest.mark.parametrize("value", [None, "64", -1, True], ids=repr)
def test_number_is_read_or_refused(
    config: dict[str, Any], name: str, value: object
) -> None:
    """No default of ours, or of upstream, stands in for a missing number."""
    config["text_config"][name] = value
    with pytest.raises(ConfigError) as caught:
        build(config, ServerFacts(), origin="model/config.json")
    assert_refusal(caught.value, origin="model/config.json", found=name)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"tp_size": 3}, "tensor parallel size 3"),
        ({"tp_size": 0}, "tensor parallel size 0"),
        ({"page_size": 66}, "page size 66"),
        ({"kv_cache_dtype": "int4"}, "dtype 'int4'"),
        ({"qsa_indexer_dtype": "fp4"}, "dtype 'fp4'"),
        ({"mamba_ssm_dtype": "float64"}, "dtype 'float64'"),
    ],
)
def test_impossible_server_is_refused(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        layout_of(ServerFacts(**changes))
    assert_refusal(caught.value, found=found)


@pytest.mark.parametrize("architectures", [None, [], ["Qwen3ForCausalLM"]])
def test_other_architecture_is_refused(
    config: dict[str, Any], architectures: list[str] | None
) -> None:
    config["architectures"] = architectures
    with pytest.raises(ConfigError) as caught:
        build(config, ServerFacts(), origin="other/config.json")
    assert_refusal(caught.value, origin="other/config.json", found=repr(architectures))


@pytest.mark.parametrize(
    "types", [["linear_attention"], ["linear_attention"] * 47 + ["sliding_attention"]]
)
def test_unknown_layers_are_refused(config: dict[str, Any], types: list[str]) -> None:
    config["text_config"]["layer_types"] = types
    with pytest.raises(ConfigError) as caught:
        build(config, ServerFacts(), origin="config.json")
    assert_refusal(caught.value, found=f"{len(types)} layer_types")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "FileNotFoundError"),
        ("{not json", "JSONDecodeError"),
        ("[1]", "list"),
    ],
)
def test_unreadable_config_is_refused(
    tmp_path: Path, text: str | None, found: str
) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_model_config(file)
    assert_refusal(caught.value, origin=str(file), found=found)


def test_folder_of_a_model_is_read(tmp_path: Path) -> None:
    document = {"architectures": [ARCHITECTURE]}
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert read_model_config(tmp_path) == document


@pytest.mark.parametrize("name", ["torch.bfloat16", "bfloat16", "bf16"])
def test_names_of_one_dtype_give_one_layout(name: str) -> None:
    """SGLang's flag, its resolved torch dtype and its config name the same bytes."""
    layout = layout_of(ServerFacts(kv_cache_dtype=name, mamba_conv_dtype=name))
    assert layout.layout_id == layout_of(ServerFacts()).layout_id


def test_fp8_is_not_another_fp8() -> None:
    ids = {
        layout_of(ServerFacts(kv_cache_dtype=name)).layout_id
        for name in ("fp8_e4m3", "torch.float8_e4m3fn", "fp8_e5m2")
    }
    assert len(ids) == 2
    assert all(re.fullmatch(r"qsa1-[0-9a-f]{16}", layout_id) for layout_id in ids)


def test_weights_fingerprint_reaches_the_layout_id() -> None:
    ids = {
        layout_of(ServerFacts(weights_fingerprint=fingerprint)).layout_id
        for fingerprint in ("", "a", "b")
    }
    assert len(ids) == 3
