"""Records to pinned memory and back: every byte, and no byte besides."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_qsa_kernels.page_copy import LARGEST_PIECE, MOVE_FIELDS, PIECE_FIELDS
from sglang_qsa_kernels.page_copy.kernel import page_copy_kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROGRAMS = 3
APART = 2
TOKENS = 4
"""Device indices to a row of A; rows of B have one."""
SIZES_A, SIZES_B = (16, LARGEST_PIECE + 48, 4096), (32, 2 * LARGEST_PIECE)
HOST_RECORDS, ROWS = 5, 7


class Kind:
    """Records of one kind: random bytes on the device, poison on the host."""

    def __init__(self, sizes: tuple[int, ...], tokens: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = tokens
        self.rows = [
            torch.randint(
                0, 256, (ROWS, size), generator=generator, dtype=torch.uint8
            ).to(DEVICE)
            for size in sizes
        ]
        stride = sum(sizes) + 64
        self.host = torch.full((HOST_RECORDS, stride), 0xA5, dtype=torch.uint8)
        if DEVICE == "cuda":
            self.host = self.host.pin_memory()

    def pieces(self) -> list[list[int]]:
        found, offset = [], 0
        for rows in self.rows:
            size = rows.shape[1]
            for start in range(0, size, LARGEST_PIECE):
                found.append(
                    [
                        rows.data_ptr() + start,
                        size,
                        self.host.data_ptr() + offset + start,
                        self.host.shape[1],
                        min(LARGEST_PIECE, size - start),
                        self.tokens,
                    ]
                )
            offset += size
        return found

    def record(self, row: int) -> torch.Tensor:
        return torch.cat([rows[row] for rows in self.rows]).cpu()


def launch(
    a: Kind,
    b: Kind,
    moves_a: list[tuple[int, ...]],
    moves_b: list[tuple[int, ...]],
    *,
    to_host: bool,
    part: tuple[int, int, int, int] | None = None,
) -> None:
    """Moves are a host record, a row of the device, and maybe a second row. Those of B
    lie `APART` rows behind those of A."""
    pieces = [*a.pieces(), *b.pieces()]
    whole = (0, len(a.pieces()), len(a.pieces()), len(pieces))
    indices = torch.tensor(
        [place * kind.tokens for kind, moves in ((a, moves_a), (b, moves_b))
         for move in moves for place in move[1:]],
        device=DEVICE,
    )  # fmt: skip
    addresses = iter(range(indices.data_ptr(), indices.data_ptr() + 1 << 40, 8))
    rows: list[list[list[int]]] = []
    for kind, moves in ((a, moves_a), (b, moves_b)):
        rows.append([])
        for record, *places in moves:
            own = [next(addresses) for _ in places]
            rows[-1].append([record * kind.tokens, *[*own, 0][:2]])
    unused = [[0, 0, 0]] * APART
    head = [len(moves_a), len(moves_b), len(moves_a) + APART]
    plan = torch.tensor([head, *rows[0], *unused, *rows[1]])
    if DEVICE == "cuda":
        plan = plan.pin_memory()
    page_copy_kernel[(PROGRAMS,)](
        torch.tensor(pieces, device=DEVICE),
        torch.tensor([part or whole], device=DEVICE),
        plan,
        0,
        TO_HOST=to_host,
        WORDS=LARGEST_PIECE // 8,
        PIECE=PIECE_FIELDS,
        MOVE=MOVE_FIELDS,
    )
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@pytest.fixture
def kinds() -> tuple[Kind, Kind]:
    return Kind(SIZES_A, TOKENS, seed=1), Kind(SIZES_B, 1, seed=2)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_to_host(kinds: tuple[Kind, Kind], count: int) -> None:
    a, b = kinds
    places = random.Random(count).sample(range(ROWS), count)
    launch(a, b, [*enumerate(places)], [(3, 6)], to_host=True)
    for kind, moves in ((a, dict(enumerate(places))), (b, {3: 6})):
        for record, bytes_ in enumerate(kind.host):
            size = sum(rows.shape[1] for rows in kind.rows)
            if record in moves:
                assert torch.equal(bytes_[:size], kind.record(moves[record]))
                assert (bytes_[size:] == 0xA5).all()
            else:
                assert (bytes_ == 0xA5).all()


def test_to_the_device_in_one_and_in_two_places(kinds: tuple[Kind, Kind]) -> None:
    a, b = kinds
    for seed, kind in enumerate(kinds):
        kind.host.random_(0, 256, generator=torch.Generator().manual_seed(seed))
    before = [[kind.record(row) for row in range(ROWS)] for kind in kinds]
    launch(a, b, [(4, 2), (0, 5)], [(1, 3, 6), (2, 0)], to_host=False)
    wanted = ({2: 4, 5: 0}, {3: 1, 6: 1, 0: 2})
    for kind, old, moves in zip(kinds, before, wanted, strict=True):
        for row in range(ROWS):
            record = kind.record(row)
            new = kind.host[moves[row]][: len(record)] if row in moves else old[row]
            assert torch.equal(record, new)


def test_a_part_of_the_pieces(kinds: tuple[Kind, Kind]) -> None:
    """The second strip of A alone: what layers of another part need stays."""
    a, b = kinds
    before = a.record(1)
    launch(a, b, [(0, 1)], [(0, 0)], to_host=False, part=(1, 3, 0, 0))
    size = SIZES_A[1]
    assert (a.rows[1][1] == 0xA5).all()
    assert torch.equal(a.record(1)[:16], before[:16])
    assert torch.equal(a.record(1)[16 + size :], before[16 + size :])
