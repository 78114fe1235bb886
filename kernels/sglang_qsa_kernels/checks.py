"""Refusals of arguments, in one form: origin, found, wanted, way out."""

from __future__ import annotations

import torch


def refuse(*, origin: str, found: str, wanted: str, way_out: str) -> ValueError:
    """The exception to raise: one line that says how to call the op instead."""
    return ValueError(f"{origin}: found {found}; wanted {wanted}; {way_out}")


def require(
    tensor: torch.Tensor,
    origin: str,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    *,
    way_out: str = "pass it as the op's docstring describes it",
) -> None:
    """Refuse a tensor of another shape, dtype or device.

    Args:
        origin: op and argument, such as `score: page_table`.
        shape: wanted size of each dimension; None where any size will do.
        dtypes: the dtypes that will do.
    """
    fits = tensor.ndim == len(shape) and all(
        want is None or want == size
        for want, size in zip(shape, tensor.shape, strict=True)
    )
    if fits and tensor.dtype in dtypes and tensor.device == device:
        return
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    raise refuse(
        origin=origin,
        found=f"{found} on {tensor.device}",
        wanted=f"{names} [{sizes}] on {device}",
        way_out=way_out,
    )
