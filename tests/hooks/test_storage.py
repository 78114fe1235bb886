"""Storage keys carry the layout id, in each of the two names that backends use."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa.hooks import active
from sglang_qsa.hooks.storage import identify
from tests.pools import small_layout

LAYOUT = small_layout()
RECORDS = f"{LAYOUT.layout_id}-page_first"
CONTROLLER = SimpleNamespace(mem_pool_host=SimpleNamespace(layout="page_first"))


@pytest.fixture
def layout() -> Iterator[None]:
    active.identify(LAYOUT)
    yield
    active.identify(None)


def config_of(
    model_name: str | None, extra: dict[str, Any] | None, rank: int = 0
) -> Any:
    original = SimpleNamespace(
        model_name=model_name, extra_config=extra, tp_rank=rank, tp_size=2
    )
    return identify(lambda *_args: original, CONTROLLER, model_name, extra)


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("name", ["org/model", None, ""])
def test_model_name(name: str | None) -> None:
    expected = f"{name}-{RECORDS}" if name else RECORDS
    assert config_of(name, None).model_name == expected


@pytest.mark.usefixtures("layout")
def test_tag_names_the_shard_and_keeps_the_user_s() -> None:
    assert config_of("m", None).extra_config == {
        "extra_backend_tag": f"{RECORDS}-tp0of2"
    }
    extra = {"extra_backend_tag": "mine", "other": 1}
    assert config_of("m", extra, rank=1).extra_config == {
        "extra_backend_tag": f"mine-{RECORDS}-tp1of2",
        "other": 1,
    }
    assert extra["extra_backend_tag"] == "mine", "the user's own object"


def test_upstream_s_names_without_a_layout() -> None:
    config = config_of("m", {"a": 1})
    assert (config.model_name, config.extra_config) == ("m", {"a": 1})
