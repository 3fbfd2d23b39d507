"""How a matrix product is cut into tiles, how tiles fill a GPU, and which sizes fit."""

from dataclasses import dataclass

TILE = (256, 128)  # rows and columns: the largest tile in NVIDIA's guide, and its example


@dataclass(frozen=True)
class Tiling:
    """The tiles of one product of m × n results on a GPU with `processors` streaming multiprocessors (SMs).

    tiles: how many; each SM computes one at a time. waves: how many rounds that takes. useful: wanted results as a
    share of all results in the slots that the waves occupy (waves × processors × tile), between 0 and 1.
    """

    m: int
    n: int
    tile: tuple[int, int]
    processors: int

    @property
    def tiles(self) -> int:
        """Tiles that cover the result; a ragged edge costs whole tiles."""
        return -(-self.m // self.tile[0]) * -(-self.n // self.tile[1])

    @property
    def waves(self) -> int:
        """Rounds of at most one tile per SM."""
        return -(-self.tiles // self.processors)

    @property
    def in_tiles(self) -> float:
        """Tile quantization: wanted results as a share of the results in all tiles."""
        return self.m * self.n / (self.tiles * self.tile[0] * self.tile[1])

    @property
    def in_waves(self) -> float:
        """Wave quantization: tiles as a share of the places in all waves."""
        return self.tiles / (self.waves * self.processors)

    @property
    def useful(self) -> float:
        """Both effects together: in_tiles × in_waves."""
        return self.in_tiles * self.in_waves


def tiling(m: int, n: int, processors: int, tile: tuple[int, int] = TILE) -> Tiling:
    """The tiles and waves of a product with m × n results.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tile Quantization" and "Wave Quantization".
    ValueError: a size below 1.
    """
    if min(m, n, processors, *tile) < 1:
        raise ValueError(f"sizes start at 1: m={m}, n={n}, processors={processors}, tile={tile}")
    return Tiling(m, n, tuple(tile), processors)


def padded(size: int, multiple: int) -> int:
    """The next multiple of `multiple` that is at least `size`: padded(50257, 64) is 50304."""
    if size < 0 or multiple < 1:
        raise ValueError(f"cannot pad {size} to a multiple of {multiple}: size ≥ 0 and multiple ≥ 1 are needed")
    return -(-size // multiple) * multiple


def multiple_for(bits: int, line_bytes: int = 16) -> int:
    """How many elements of `bits` bits fill `line_bytes` bytes: sizes should be multiples of that.

    16 bytes on every GPU with Tensor Cores, 128 bytes on A100 for the full rate. Source: NVIDIA, Matrix Multiplication
    Background User's Guide, table 1. ValueError: bits that do not divide the line.
    """
    if bits < 1 or line_bytes < 1 or line_bytes * 8 % bits:
        raise ValueError(f"{bits} bits do not fill {line_bytes} bytes evenly: use 4, 8, 16, 32 or 64 bits")
    return line_bytes * 8 // bits
