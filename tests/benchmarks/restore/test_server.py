"""The command against a real server whose host memory outlives an eviction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.restore.command import main
from sglang_qsa.demo.server import SGLangServer
from sglang_qsa.demo.tiny_model import cached_checkpoint
from sglang_qsa.geometry import ServerFacts, build, read_model_config
from tests.benchmarks.restore.runs import result, samples
from tests.benchmarks.small_server import with_host_memory

pytestmark = pytest.mark.server

LENGTHS = (200, 600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    logs = tmp_path_factory.mktemp("server")
    with with_host_memory(logs) as server:
        server.wait_ready()
        yield server
        server.kill9()  # an orderly end takes ten seconds


def test_a_restore_is_all_that_the_device_had_in_bytes_too(
    server: SGLangServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = [str(length) for length in LENGTHS]
    code = main(
        [
            *("--url", server.url, "--out", str(tmp_path), "--between", "evict"),
            *("--prompt-tokens", *lengths, "--repeats", "1", "--warm-up", "0"),
        ]
    )
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "Restore by length of the prefix" in told.out
    layout = build(read_model_config(cached_checkpoint()), ServerFacts(), origin="")
    page_tokens = layout.geometry.page_tokens
    for sample, length in zip(samples(tmp_path), LENGTHS, strict=True):
        pages = (length + 12 - 1) // page_tokens
        cached = {"computed": length + 12 - pages * page_tokens}
        answers = sample["answers"]
        assert answers["cold"]["sources"] == {"computed": length + 12}
        assert answers["restored"]["sources"] == cached | {"host": pages * page_tokens}
        for step in ("device hit", "device hit after"):
            assert answers[step]["sources"] == cached | {"device": pages * page_tokens}
        moved_bytes = pages * layout.page.stride_bytes + layout.checkpoint.stride_bytes
        assert sample["loaded_bytes"] == moved_bytes
        assert sample["outputs_equal"]
        assert sample["settled_s"] < 10
    assert not result(tmp_path)["faults"]
