"""The bytes of one prefix: planes, records and the layout id.

This is the only module that may state a byte width, an order or an offset. It is
pure: standard library only, so that the CLI, the store tools and the tests can
use it on a machine without torch.

A *plane* is one named tensor family. Planes belong to a *page* (64 tokens of one
prefix) or to a *checkpoint* (the recurrent state at one token boundary). A
*record* is the planes of one unit, in declared order, without holes. The *layout
id* is the digest of everything that changes a byte of any record.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from math import prod

SCHEMA = 1
"""Bump together with the golden files when the bytes of any record change."""

DRAFT_KEYS = 2
"""Bump when servers with drafts keep other index keys than before, at equal bytes. The
first were sglang 0.5.23's own, mixed with the keys of rejected drafts."""

RECORD_ALIGNMENT = 4096
"""Bytes. Records in host memory start at multiples of it, as direct I/O wants."""

COPY_BYTES = 16
"""What a copy to host memory moves at a time; a layer of a plane is a multiple."""


class DType(enum.Enum):
    """Logical element types; `fp8_e4m3` never equals `uint8` though both are a byte."""

    FP32 = ("float32", 32)
    BF16 = ("bfloat16", 16)
    FP16 = ("float16", 16)
    FP8_E4M3 = ("float8_e4m3", 8)
    FP8_E5M2 = ("float8_e5m2", 8)
    INT64 = ("int64", 64)

    def __init__(self, label: str, bits: int) -> None:
        self.label = label
        self.bits = bits

    @property
    def item_bytes(self) -> int:
        return self.bits // 8


class Unit(enum.Enum):
    """What one record belongs to."""

    PAGE = "page"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Every number that decides a byte, for one rank of one deployment.

    Built by `sglang_qsa.geometry`; each field enters the layout id.
    """

    architecture: str
    weights_fingerprint: str
    """Digest of the weights, or `""` when it is not known (CLI on a bare config)."""
    image_input: bool
    tp_size: int
    page_tokens: int
    compress_ratio: int
    """Tokens per compressed index key."""

    kv_layers: tuple[int, ...]
    """Global ids of the QSA layers, in pool order."""
    kv_heads: int
    head_dim: int
    kv_dtype: DType
    kv_scales: bool
    """One fp32 scale per (token, KV head) and per index group beside FP8 planes."""
    index_heads: int
    index_dim: int
    index_dtype: DType
    index_budget_tokens: int
    draft_layers: int
    """MTP layers whose rows belong to the page; 0 without speculative decoding."""

    gdn_layers: tuple[int, ...]
    gdn_value_heads: int
    gdn_value_dim: int
    gdn_key_dim: int
    gdn_conv_channels: int
    gdn_conv_window: int
    ssm_dtype: DType
    ssm_order: tuple[str, str, str]
    """Axis order of one SSM state as the pool stores it."""
    conv_dtype: DType

    ple_layers: tuple[int, ...]
    ple_channels: int
    ple_window: int
    ple_dtype: DType
    ngram_tokens: int
    ngram_eos_token_id: int
    """Fills the n-gram window before the first token; 0 without PLE."""

    @property
    def last_layer(self) -> int:
        """Id of the model's last layer that keeps anything."""
        return max(*self.kv_layers, *self.gdn_layers)


@dataclass(frozen=True, slots=True)
class Plane:
    """One named tensor family inside a record.

    `shape` is that of one record, outermost axis first, C order; the first axis is
    always the layer.
    """

    name: str
    unit: Unit
    dtype: DType
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def layers(self) -> int:
        return self.shape[0]

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of this plane in one record."""
        return prod(self.shape[1:]) * self.dtype.item_bytes

    @property
    def record_bytes(self) -> int:
        return self.layers * self.layer_bytes


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `[offset, offset + size)` of a record."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """The planes of one unit in byte order; spans tile the record exactly."""

    unit: Unit
    planes: tuple[Plane, ...]

    @property
    def record_bytes(self) -> int:
        return sum(plane.record_bytes for plane in self.planes)

    @property
    def stride_bytes(self) -> int:
        """From one record to the next in host memory; what is over is padding."""
        return -(-self.record_bytes // RECORD_ALIGNMENT) * RECORD_ALIGNMENT

    def spans(self) -> dict[str, Span]:
        """Where each plane lies, by name."""
        spans, offset = {}, 0
        for plane in self.planes:
            spans[plane.name] = Span(offset, plane.record_bytes)
            offset += plane.record_bytes
        return spans

    def layer_spans(self) -> dict[str, tuple[Span, ...]]:
        """Where each layer of each plane lies, by name of the plane."""
        return {
            plane.name: tuple(
                Span(whole.offset + layer * plane.layer_bytes, plane.layer_bytes)
                for layer in range(plane.layers)
            )
            for plane, whole in zip(self.planes, self.spans().values(), strict=True)
        }


@dataclass(frozen=True, slots=True)
class Layout:
    """Page record, checkpoint record and identity of one rank's cache."""

    geometry: Geometry
    page: Record
    checkpoint: Record

    @property
    def planes(self) -> tuple[Plane, ...]:
        return self.page.planes + self.checkpoint.planes

    @property
    def page_bytes(self) -> int:
        return self.page.record_bytes

    @property
    def checkpoint_bytes(self) -> int:
        return self.checkpoint.record_bytes

    @property
    def token_bytes(self) -> int:
        return self.page_bytes // self.geometry.page_tokens

    @property
    def layout_id(self) -> str:
        """`qsa<schema>-` and 16 hex digits over the canonical identity."""
        digest = hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()
        return f"qsa{SCHEMA}-{digest[:16]}"

    def identity(self) -> dict[str, object]:
        """The dict that is hashed; stores write it beside the data for humans."""
        drafts = {"draft_keys": DRAFT_KEYS} if self.geometry.draft_layers else {}
        return {
            "schema": SCHEMA,
            "geometry": {
                field.name: _plain(getattr(self.geometry, field.name))
                for field in fields(self.geometry)
            },
            "planes": [plane_as_dict(plane) for plane in self.planes],
            **drafts,
        }


def build_layout(geometry: Geometry) -> Layout:
    """Derive both records from `geometry`."""
    return Layout(
        geometry=geometry,
        page=Record(Unit.PAGE, tuple(_page_planes(geometry))),
        checkpoint=Record(Unit.CHECKPOINT, tuple(_checkpoint_planes(geometry))),
    )


def plane_as_dict(plane: Plane) -> dict[str, object]:
    """JSON form of a plane, as `sglang-qsa layout --json` prints it."""
    plain = {name: _plain(value) for name, value in asdict(plane).items()}
    return {**plain, "record_bytes": plane.record_bytes}


def canonical_json(value: object) -> str:
    """Sorted, compact JSON: equal values give equal text whatever the dict order."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _page_planes(g: Geometry) -> Iterator[Plane]:
    def kv(name: str, layers: int) -> Plane:
        dims = ("layer", "token", "kv_head", "head_dim")
        shape = (layers, g.page_tokens, g.kv_heads, g.head_dim)
        return Plane(name, Unit.PAGE, g.kv_dtype, dims, shape)

    def index(name: str, layers: int) -> Plane:
        dims = ("layer", "group", "index_head", "index_dim")
        shape = (layers, groups, g.index_heads, g.index_dim)
        return Plane(name, Unit.PAGE, g.index_dtype, dims, shape)

    def kv_scale(name: str, layers: int) -> Plane:
        shape = (layers, g.page_tokens, g.kv_heads)
        return Plane(name, Unit.PAGE, DType.FP32, ("layer", "token", "kv_head"), shape)

    def index_scale(name: str, layers: int) -> Plane:
        shape = (layers, groups, g.index_heads)
        dims = ("layer", "group", "index_head")
        return Plane(name, Unit.PAGE, DType.FP32, dims, shape)

    groups = g.page_tokens // g.compress_ratio
    for prefix, layers in (("", len(g.kv_layers)), ("draft_", g.draft_layers)):
        if not layers:
            continue
        yield kv(f"{prefix}k", layers)
        yield kv(f"{prefix}v", layers)
        yield index(f"{prefix}index", layers)
        if g.kv_scales:
            yield kv_scale(f"{prefix}k_scale", layers)
            yield kv_scale(f"{prefix}v_scale", layers)
            yield index_scale(f"{prefix}index_scale", layers)


def _checkpoint_planes(g: Geometry) -> Iterator[Plane]:
    sizes = {
        "value_head": g.gdn_value_heads,
        "value_dim": g.gdn_value_dim,
        "key_dim": g.gdn_key_dim,
    }
    layers = len(g.gdn_layers)
    yield Plane(
        "ssm",
        Unit.CHECKPOINT,
        g.ssm_dtype,
        ("layer", *g.ssm_order),
        (layers, *(sizes[axis] for axis in g.ssm_order)),
    )
    yield Plane(
        "conv",
        Unit.CHECKPOINT,
        g.conv_dtype,
        ("layer", "channel", "window"),
        (layers, g.gdn_conv_channels, g.gdn_conv_window),
    )
    if g.ple_layers:
        yield Plane(
            "ple_conv",
            Unit.CHECKPOINT,
            g.ple_dtype,
            ("layer", "channel", "window"),
            (len(g.ple_layers), g.ple_channels, g.ple_window),
        )
    if g.ngram_tokens:
        # One window per request, not per layer; the layer axis is kept so that
        # every plane has the same rank convention.
        yield Plane(
            "ple_ngram",
            Unit.CHECKPOINT,
            DType.INT64,
            ("layer", "token"),
            (1, g.ngram_tokens),
        )


def _plain(value: object) -> object:
    if isinstance(value, DType):
        return value.label
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
