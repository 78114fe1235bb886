"""The bytes of a record: golden files, an independent replay, and properties.

`pytest tests/test_layout.py --update-golden` rewrites the golden files; a change of
theirs belongs into the commit that raises `layout.SCHEMA`, or `DRAFT_KEYS` for drafts.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_qsa import layout as layout_module
from sglang_qsa.geometry import ServerFacts
from sglang_qsa.layout import (
    SCHEMA,
    DType,
    Geometry,
    Record,
    build_layout,
    canonical_json,
    plane_as_dict,
)
from tests.deployments import DEPLOYMENTS, layout_of

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[1]
FIELDS = [field.name for field in dataclasses.fields(Geometry)]

each_deployment = pytest.mark.parametrize("name", DEPLOYMENTS)


# -- identity --------------------------------------------------------------------


@each_deployment
def test_identity_is_the_golden_one(name: str, update_golden: bool) -> None:
    layout = layout_of(DEPLOYMENTS[name])
    found = {"layout_id": layout.layout_id, "identity": layout.identity()}
    golden = GOLDEN / f"layout-{name}.json"
    if update_golden:
        golden.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(golden.read_text(encoding="utf-8"))


def test_deployments_have_different_ids() -> None:
    ids = {layout_of(facts).layout_id for facts in DEPLOYMENTS.values()}
    assert len(ids) == len(DEPLOYMENTS)


def test_id_carries_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of(ServerFacts())
    before = layout.layout_id
    monkeypatch.setattr(layout_module, "SCHEMA", SCHEMA + 1)
    assert before.startswith(f"qsa{SCHEMA}-")
    assert layout.layout_id.startswith(f"qsa{SCHEMA + 1}-")
    assert layout.layout_id.partition("-")[2] != before.partition("-")[2]


def test_keys_of_servers_with_drafts_have_a_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was kept with mixed index keys is a miss, and nothing else is."""
    ids = [layout_of(ServerFacts(draft=draft)).layout_id for draft in (False, True)]
    monkeypatch.setattr(layout_module, "DRAFT_KEYS", layout_module.DRAFT_KEYS + 1)
    plain, drafts = (
        layout_of(ServerFacts(draft=draft)).layout_id for draft in (False, True)
    )
    assert plain == ids[0]
    assert drafts != ids[1]


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_changes_the_id(field: str) -> None:
    layout = layout_of(ServerFacts(kv_scales=True, draft=True))
    value = getattr(layout.geometry, field)
    changed = dataclasses.replace(layout.geometry, **{field: another(value)})
    assert build_layout(changed).layout_id != layout.layout_id


def another(value: Any) -> Any:
    """A value of the same type that differs."""
    match value:
        case DType():
            return DType.FP8_E5M2 if value is not DType.FP8_E5M2 else DType.FP16
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case (str(), *_):
            return tuple(reversed(value))
        case tuple():
            return (*value, 99)
    raise AssertionError(f"no other value for {value!r}")


@pytest.mark.parametrize("change", ["name", "dtype", "dims", "shape"])
def test_every_fact_of_a_plane_changes_the_id(change: str) -> None:
    """The declared planes are hashed, not only the geometry they came from."""
    layout = layout_of(ServerFacts())
    first, *others = layout.page.planes
    changed = dataclasses.replace(first, **{change: another(getattr(first, change))})
    page = dataclasses.replace(layout.page, planes=(changed, *others))
    assert dataclasses.replace(layout, page=page).layout_id != layout.layout_id


def test_order_of_planes_changes_the_id() -> None:
    layout = layout_of(ServerFacts())
    page = dataclasses.replace(layout.page, planes=layout.page.planes[::-1])
    assert dataclasses.replace(layout, page=page).layout_id != layout.layout_id


def test_json_of_equal_dicts_is_equal() -> None:
    assert canonical_json({"a": 1, "b": [2]}) == canonical_json({"b": [2], "a": 1})
    assert canonical_json({"a": 1}) == '{"a":1}'


# -- bytes -----------------------------------------------------------------------

BF16, FP32, BYTE, INT64 = "<u2", "<f4", "u1", "<i8"
KV, INDEX = (64, 2, 256), (16, 1, 128)
STATE = [
    ("ssm", FP32, (36, 48, 128, 128)),
    ("conv", BF16, (36, 10_240, 3)),
    ("ple_conv", BF16, (1, 10_240, 9)),
    ("ple_ngram", INT64, (1, 2)),
]
PAGES: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {
    "default": [
        ("k", BF16, (12, *KV)),
        ("v", BF16, (12, *KV)),
        ("index", BF16, (12, *INDEX)),
    ],
    "tp2": [
        ("k", BF16, (12, 64, 1, 256)),
        ("v", BF16, (12, 64, 1, 256)),
        ("index", BF16, (12, *INDEX)),
    ],
    "draft": [
        ("k", BF16, (12, *KV)),
        ("v", BF16, (12, *KV)),
        ("index", BF16, (12, *INDEX)),
        ("draft_k", BF16, (1, *KV)),
        ("draft_v", BF16, (1, *KV)),
        ("draft_index", BF16, (1, *INDEX)),
    ],
    "fp8-scales": [
        ("k", BYTE, (12, *KV)),
        ("v", BYTE, (12, *KV)),
        ("index", BYTE, (12, *INDEX)),
        ("k_scale", FP32, (12, 64, 2)),
        ("v_scale", FP32, (12, 64, 2)),
        ("index_scale", FP32, (12, 16, 1)),
    ],
}
STATES = dict.fromkeys(PAGES, STATE) | {
    "tp2": [
        ("ssm", FP32, (36, 24, 128, 128)),
        ("conv", BF16, (36, 5_120, 3)),
        *STATE[2:],
    ]
}


def assert_bytes_as_numpy_packs(
    record: Record, fields: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    """A packed C struct written down by hand lies exactly as the record says."""
    struct = np.dtype(fields)
    assert list(struct.names or ()) == [plane.name for plane in record.planes]
    assert struct.itemsize == record.record_bytes
    row = np.zeros(1, struct)
    for number, name in enumerate(struct.names or (), 1):
        row[name].view(BYTE)[...] = number
    packed = np.frombuffer(row.tobytes(), BYTE)
    for number, (name, span) in enumerate(record.spans().items(), 1):
        assert np.flatnonzero(packed == number)[[0, -1]].tolist() == [
            span.offset,
            span.offset + span.size - 1,
        ], name


@each_deployment
def test_page_is_a_packed_struct(name: str) -> None:
    assert_bytes_as_numpy_packs(layout_of(DEPLOYMENTS[name]).page, PAGES[name])


@each_deployment
def test_checkpoint_is_a_packed_struct(name: str) -> None:
    assert_bytes_as_numpy_packs(layout_of(DEPLOYMENTS[name]).checkpoint, STATES[name])


# -- properties ------------------------------------------------------------------

small = st.integers(1, 6)
layer_ids = st.lists(st.integers(0, 63), min_size=1, max_size=5, unique=True).map(
    lambda ids: tuple(sorted(ids))
)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Any geometry whose groups fill its pages."""
    ratio = draw(small)
    values: dict[str, Any] = {
        "page_tokens": ratio * draw(small),
        "compress_ratio": ratio,
        "ple_layers": draw(st.one_of(st.just(()), layer_ids)),
        "ngram_tokens": draw(st.integers(0, 3)),
        "draft_layers": draw(st.integers(0, 2)),
        "ssm_order": tuple(
            draw(st.permutations(["value_head", "value_dim", "key_dim"]))
        ),
    }
    by_type: dict[str, st.SearchStrategy[Any]] = {
        "int": small,
        "bool": st.booleans(),
        "str": st.text(max_size=4),
        "DType": st.sampled_from(DType),
        "tuple[int, ...]": layer_ids,
    }
    for field in dataclasses.fields(Geometry):
        if field.name not in values:
            values[field.name] = draw(by_type[str(field.type)])
    return Geometry(**values)


@given(geometries())
def test_spans_tile_the_record(geometry: Geometry) -> None:
    layout = build_layout(geometry)
    for record in (layout.page, layout.checkpoint):
        end = 0
        for plane, (name, span) in zip(
            record.planes, record.spans().items(), strict=True
        ):
            assert (plane.name, plane.unit) == (name, record.unit)
            assert span.offset == end
            assert span.size == plane.layers * plane.layer_bytes > 0
            end = span.offset + span.size
        assert end == record.record_bytes


@given(geometries())
def test_layers_tile_their_plane(geometry: Geometry) -> None:
    for record in (build_layout(geometry).page, build_layout(geometry).checkpoint):
        layers = record.layer_spans()
        for plane in record.planes:
            whole, parts = record.spans()[plane.name], layers[plane.name]
            assert len(parts) == plane.layers
            ends = [whole.offset, *(part.offset + part.size for part in parts)]
            assert [part.offset for part in parts] == ends[:-1]
            assert ends[-1] == whole.offset + whole.size


@given(geometries())
def test_planes_are_as_their_shape_says(geometry: Geometry) -> None:
    layout = build_layout(geometry)
    names = [plane.name for plane in layout.planes]
    assert len(set(names)) == len(names)
    for plane in layout.planes:
        assert len(plane.dims) == len(plane.shape)
        assert plane.dims[0] == "layer"
        items = int(np.prod(plane.shape))
        assert plane.record_bytes * 8 == items * plane.dtype.bits
        described = json.loads(json.dumps(plane_as_dict(plane)))
        assert described["record_bytes"] == plane.record_bytes
        assert described["unit"] in ("page", "checkpoint")


@given(geometries(), geometries())
def test_id_separates_geometries(one: Geometry, other: Geometry) -> None:
    assume(one != other)
    assert build_layout(one).layout_id != build_layout(other).layout_id
    assert build_layout(one).layout_id == build_layout(one).layout_id


# -- boundaries of the module ----------------------------------------------------

PURE = [
    *("layout", "geometry", "config", "errors", "fingerprint", "cli"),
    *("boundary", "admission", "budget"),
]


@pytest.mark.parametrize("module", PURE)
def test_imports_with_the_standard_library_alone(module: str) -> None:
    """`-S -I` leaves nothing else on the path, except what is put there here."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import sglang_qsa.{module}"
    )
    subprocess.run([sys.executable, "-S", "-I", "-c", program], check=True, timeout=60)


NOT_OF_A_RECORD = {
    ("fingerprint.py", "_SAMPLE_BYTES"),  # how much of a weight file is read
    ("adapter.py", "_COPY_BYTES"),  # how the daemon copies
}
SIZE_NAME = re.compile(r"(bytes|bits|offset|stride|width)s?$", re.IGNORECASE)
ITEM_WIDTHS = {"item_bytes", "bits", "itemsize", "element_size"}
MEASURES_LIVE_POOLS = {"arena.py"}


def test_no_other_module_states_a_size() -> None:
    """No figure of the layout, no number under a name of a size, no element width."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "sglang_qsa").rglob("*.py"))
        if path.name != "layout.py" and "demo" not in path.parts
        for node in sizes_in(path)
    ]
    assert found == []


def sizes_in(path: Path) -> Iterator[ast.expr]:
    figures = figures_of_layouts()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        yield from (
            value
            for name, value in named_values(node)
            if isinstance(value, ast.Constant)
            and SIZE_NAME.search(name)
            and (path.name, name) not in NOT_OF_A_RECORD
        )
        if isinstance(node, ast.Constant) and node.value in figures:
            yield node
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ITEM_WIDTHS
            and path.name not in MEASURES_LIVE_POOLS
        ):
            yield node


def named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """`name = value`, `name: T = value` and `f(name=value)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        if isinstance(node.target, ast.Name):
            yield node.target.id, node.value
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value


def figures_of_layouts() -> set[int]:
    """Every offset and size of the pinned deployments; powers of two mean anything."""
    figures: set[int] = set()
    for layout in map(layout_of, DEPLOYMENTS.values()):
        figures |= {layout.token_bytes, layout.page_bytes, layout.checkpoint_bytes}
        figures |= {plane.layer_bytes for plane in layout.planes}
        for record in (layout.page, layout.checkpoint):
            for span in record.spans().values():
                figures |= {span.offset, span.size}
    return {figure for figure in figures if figure & (figure - 1)}


@pytest.mark.parametrize(
    "line",
    [
        "x = 115642384",
        "f(1622016)",
        "_ROW_BYTES = 4096",
        "row_offset: int = 64",
        "f(width=2)",
        "x = tensor.element_size()",
        "x = DType.BF16.item_bytes",
    ],
)
def test_size_check_sees_sizes(tmp_path: Path, line: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"{line}\ny = 4096 + 65536\nlimit = 16\n")
    assert [node.lineno for node in sizes_in(module)] == [1]


def test_labels_of_dtypes_differ() -> None:
    """Identities hold labels; two members with one label would be one identity."""
    labels = {dtype.label for dtype in DType.__members__.values()}
    assert len(labels) == len(DType.__members__)
