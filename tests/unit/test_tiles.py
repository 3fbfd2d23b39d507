"""Tiles against counting them one by one, and NVIDIA's own example."""

import itertools

import pytest

from ampedu.tiles import multiple_for, padded, tiling


def test_nvidias_example():
    # Matrix Multiplication Background User's Guide: A100, 108 SMs, tiles of 256 × 128.
    one, more = tiling(1792, 1792, 108), tiling(1793, 1793, 108)
    assert (one.tiles, one.waves, more.tiles, more.waves) == (98, 1, 120, 2)
    assert one.useful == 98 / 108 and one.in_tiles == 1.0
    assert more.useful == pytest.approx(1793**2 / (2 * 108 * 256 * 128)) and 0.45 < more.useful < 0.46
    assert more.in_waves == 120 / 216


@pytest.mark.parametrize(("m", "n"), itertools.product((1, 7, 8, 9, 31), (1, 4, 5, 33)))
@pytest.mark.parametrize("processors", [1, 3, 8])
def test_by_counting(m, n, processors):
    corners = [(row, column) for row in range(0, m, 8) for column in range(0, n, 4)]
    cut = tiling(m, n, processors, tile=(8, 4))
    assert cut.tiles == len(corners)
    waves = list(itertools.batched(corners, processors)) if hasattr(itertools, "batched") else None
    assert cut.waves == (len(waves) if waves else sum(index % processors == 0 for index in range(len(corners))))
    assert cut.useful == pytest.approx(m * n / (cut.waves * processors * 32))
    assert 0 < cut.useful <= 1 and cut.useful == pytest.approx(cut.in_tiles * cut.in_waves)


def test_padding_and_alignment():
    assert padded(50257, 64) == 50304 and padded(50304, 64) == 50304 and padded(0, 8) == 0
    assert [multiple_for(bits) for bits in (4, 8, 16, 32)] == [32, 16, 8, 4]
    assert [multiple_for(bits, 128) for bits in (8, 16, 32, 64)] == [128, 64, 32, 16]  # table 1, A100


def test_bad_sizes_are_named():
    for call in (lambda: tiling(0, 5, 1), lambda: padded(5, 0), lambda: multiple_for(19)):
        with pytest.raises(ValueError):
            call()
