"""A refused launch ends with exit code 2 and one line, in every process."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_qsa.errors import ConfigError
from sglang_qsa.hooks.launch import (
    check_before_resolution,
    pass_on_refusal,
    refuse,
)
from tests.pools import CONFIG

pytestmark = pytest.mark.usefixtures("sglang_runtime")


def test_refusal_is_printed_once_and_ends_with_two(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert refuse(ConfigError("a: found b; wanted c; d")).code == 2
    assert capfd.readouterr().err == "sglang_qsa: a: found b; wanted c; d\n"


# -- the launching process -------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def launch(model: Path, **arguments: Any) -> list[Any]:
    """Resolve these arguments as far as the hook lets it; what upstream saw."""
    from sglang.srt.server_args import ServerArgs

    resolved: list[Any] = []
    check_before_resolution(
        resolved.append, ServerArgs(model_path=str(model), device="cpu", **arguments)
    )
    return resolved


def test_good_launch_goes_on(model: Path) -> None:
    assert len(launch(model)) == 1


def test_refused_launch_ends_before_resolution(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        launch(model, enable_mixed_chunk=True)
    assert exit_.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("sglang_qsa: --enable-mixed-chunk: found True; wanted ")


def test_other_models_are_left_alone(model: Path) -> None:
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert len(launch(model, enable_mixed_chunk=True)) == 1


def test_resolved_arguments_are_not_checked_again(model: Path) -> None:
    """Resolution sets options itself; only what the user gave is judged."""
    resolved: list[Any] = []
    arguments = SimpleNamespace(_resolution_finished=True)
    check_before_resolution(resolved.append, arguments)
    assert resolved == [arguments]


def test_child_processes_do_not_check_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert len(launch(model, enable_mixed_chunk=True)) == 1


def test_hook_refuses_through_upstream_s_method(applied: Any, model: Path) -> None:
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(model_path=str(model), device="cpu", enable_mixed_chunk=True)
    with pytest.raises(SystemExit) as exit_:
        arguments.resolve_once()
    assert exit_.value.code == 2


# -- the schedulers --------------------------------------------------------------


def wait(exit_codes: Sequence[int | None], failure: BaseException | None) -> Any:
    """Upstream's wait, where these schedulers ended so and it reported `failure`."""

    def original(_readers: Sequence[Any], _processes: Sequence[Any]) -> str:
        if failure is not None:
            raise failure
        return "ready"

    processes = [SimpleNamespace(exitcode=code) for code in exit_codes]
    return pass_on_refusal(original, [], processes)


def test_ready_schedulers_are_ready() -> None:
    assert wait([None, None], None) == "ready"


@pytest.mark.parametrize("codes", [[2], [None, 2], [-15, 2, None]])
def test_scheduler_that_refused_ends_the_launch_with_two(
    codes: list[int | None],
) -> None:
    with pytest.raises(SystemExit) as exit_:
        wait(codes, RuntimeError("died"))
    assert exit_.value.code == 2


@pytest.mark.parametrize("codes", [[1], [None], [-9, 0], []])
def test_other_deaths_stay_upstream_s(codes: list[int | None]) -> None:
    with pytest.raises(RuntimeError, match="died"):
        wait(codes, RuntimeError("died"))


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("other")])
def test_other_failures_are_not_a_refusal(failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        wait([2], failure)
