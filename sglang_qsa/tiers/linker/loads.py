"""Read records and put them into the device pools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch

from sglang_qsa.errors import StoreUnavailable, refusal
from sglang_qsa.tiers.linker.device import DeviceRecords
from sglang_qsa.tiers.store.directory import DirectoryStore, Read
from sglang_qsa.tiers.store.record import Kind, Outcome

BATCH_PAGES = 32
"""Pages that are read or copied at a time; two batches of them are in memory."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one kind, and the rows of the device pools that they go to."""

    kind: Kind
    target: DeviceRecords
    keys: Sequence[str]
    rows: torch.Tensor
    """`[keys]` int64."""

    def parts(self) -> Iterator[Batch]:
        for at in range(0, len(self.keys), BATCH_PAGES):
            end = at + BATCH_PAGES
            yield replace(self, keys=self.keys[at:end], rows=self.rows[at:end])


@dataclass(frozen=True, slots=True)
class Load:
    """The pages and the checkpoint of one request."""

    pages: Batch
    checkpoint: Batch

    @property
    def record_bytes(self) -> int:
        batches = (self.pages, self.checkpoint)
        return sum(len(batch.keys) * batch.target.record_bytes for batch in batches)

    def run(self, store: DirectoryStore) -> None:
        """Write all of it, on the current stream; one batch is read ahead.

        Raises:
            StoreUnavailable: a record is not what was stored. Rows are then undefined.
        """
        waiting = None
        for batch in (*self.checkpoint.parts(), *self.pages.parts()):
            reading = _read(store, batch)
            if waiting is not None:
                _write(*waiting)
            waiting = batch, *reading
        if waiting is not None:
            _write(*waiting)


def _read(
    store: DirectoryStore, batch: Batch
) -> tuple[torch.Tensor, Future[list[Outcome]]]:
    shape = (len(batch.keys), batch.target.record_bytes)
    records = torch.empty(shape, dtype=torch.uint8)
    reads = [
        Read(batch.kind, key, record.numpy().data)
        for key, record in zip(batch.keys, records, strict=True)
    ]
    return records, store.submit_get(reads)


def _write(batch: Batch, records: torch.Tensor, reading: Future[list[Outcome]]) -> None:
    bad = [outcome for outcome in reading.result() if outcome is not Outcome.HIT]
    if bad:
        raise StoreUnavailable(
            refusal(
                found=f"{len(bad)} {batch.kind.name.lower()} records ({bad[0].value})",
                wanted="what the look-up promised",
                origin="record store",
                way_out="send the prompt again: it will be computed",
            )
        )
    batch.target.write(batch.rows, records)
