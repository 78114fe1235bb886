"""Names that the daemon's keys are made of: they separate, and they are accepted."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("sglang_runtime")

LAYOUT_ID = "qsa1-0123456789abcdef"
ANY_TEXT = st.one_of(st.none(), st.text(max_size=6), st.text(alphabet='"[],\0\\/@a'))


def salt(cache_salt: str | None, extra_key: str | None) -> str:
    from sglang_qsa.tiers.lmcache.connector import QsaConnector

    return str(QsaConnector.build_cache_salt(cache_salt, extra_key))


def model_name(path: str) -> str:
    from sglang_qsa.tiers.lmcache.cache import lmcache_model_name

    return lmcache_model_name(path, LAYOUT_ID)


def accepted(model: str, cache_salt: str) -> bool:
    """The daemon makes keys of them."""
    from lmcache.v1.distributed.api import ObjectKey

    key = ObjectKey(b"hash", model, kv_rank=0, cache_salt=cache_salt)
    return bool(key.model_name == model and key.cache_salt == cache_salt)


@pytest.mark.parametrize("parts", [(None, None), ("", None), (None, ""), ("", "")])
def test_no_salt_is_the_common_namespace(parts: tuple[str | None, str | None]) -> None:
    assert salt(*parts) == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a\0b", "c"), ("a", "b\0c")),
        (("a", None), (None, "a")),
        (('a", "b', None), ("a", "b")),
        (("a", "b"), ("b", "a")),
    ],
    ids=["moved letter", "moved separator", "swapped place", "quoted", "swapped"],
)
def test_pairs_do_not_collide(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    assert salt(*one) != salt(*other)


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_different_pairs_have_different_salts(
    a: str | None, b: str | None, c: str | None, d: str | None
) -> None:
    assume((a or "", b or "") != (c or "", d or ""))
    assert salt(a, b) != salt(c, d)


@given(ANY_TEXT, ANY_TEXT)
def test_salt_is_accepted_by_the_daemon(a: str | None, b: str | None) -> None:
    """Raw, a slash or a long salt would be rejected, and that would be a miss."""
    assert re.fullmatch(r"([0-9a-f]{64})?", salt(a, b))
    assert accepted("model", salt(a, b))


def test_long_salt_is_accepted() -> None:
    assert accepted("model", salt("x" * 10_000, "y" * 10_000))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3.8-Flash-Next", "Qwen3.8-Flash-Next"),
        ("/models/Qwen3.8-Flash-Next/", "Qwen3.8-Flash-Next"),
        ("/models//", "models"),
        ("tiny", "tiny"),
        ("org/model@main", "model-main"),
    ],
)
def test_model_name_is_readable_and_carries_the_layout(path: str, name: str) -> None:
    assert model_name(path) == f"{name}-{LAYOUT_ID}"


@given(st.text(max_size=20))
def test_model_name_is_accepted_by_the_daemon(path: str) -> None:
    name = model_name(path)
    assert "/" not in name
    assert name.endswith(f"-{LAYOUT_ID}")
    assert accepted(name, "")
