"""Inputs from a hash stream.

The same for everyone who has the secret, on every machine and with every torch version.

Draw k of the stream NAME is HMAC-SHA256(secret, "NAME/k"); a draw that needs more than 256 bits goes on with
"NAME/k#1", "NAME/k#2", … So a draw depends on its index alone, not on the kind or the size of earlier draws.
"""

import hashlib
import hmac

import torch

PUBLIC = b"public"


class Stream:
    """A numbered sequence of uniform draws.

    ``name`` is the exercise id; ``at(i)`` is an independent stream for case i.
    """

    def __init__(self, secret: bytes, name: str):
        if type(secret) is not bytes or not secret:
            raise ValueError("the secret of a Stream is a non-empty bytes object, for example b'public'")
        self._secret, self.name, self._index = secret, name, 0

    def at(self, index: int) -> "Stream":
        """The stream "NAME/index": adding or removing draws elsewhere does not change it."""
        return Stream(self._secret, f"{self.name}/{index}")

    def bits(self, n: int) -> int:
        """An integer of n uniform bits, 0 ≤ result < 2**n."""
        if n < 0:
            raise ValueError(f"bits(n) needs n ≥ 0, got {n}")
        label, self._index = f"{self.name}/{self._index}", self._index + 1
        return self._block(label, n, 0)

    def integer(self, low: int, high: int) -> int:
        """A uniform integer in [low, high], both ends included, without modulo bias (rejection)."""
        span = high - low + 1
        if span < 1:
            raise ValueError(f"integer(low, high) needs low ≤ high, got {low} and {high}")
        label, self._index = f"{self.name}/{self._index}", self._index + 1
        width = -(-(span.bit_length() + 64) // 256) * 256
        limit, blocks = (1 << width) // span * span, width // 256
        start = 0
        while (value := self._block(label, width, start)) >= limit:
            start += blocks
        return low + value % span

    def integers(self, low: int, high: int, n: int) -> list[int]:
        """n independent integers in [low, high]."""
        return [self.integer(low, high) for _ in range(n)]

    def choice(self, seq):
        """One element of a non-empty sequence."""
        if not len(seq):
            raise ValueError("choice needs a non-empty sequence")
        return seq[self.integer(0, len(seq) - 1)]

    def sample(self, seq, n: int) -> list:
        """n different elements of seq in random order (Fisher-Yates)."""
        if not 0 <= n <= len(seq):
            raise ValueError(f"sample: n = {n} is not between 0 and {len(seq)}, the length of the sequence")
        pool = list(seq)
        for i in range(n):
            j = self.integer(i, len(pool) - 1)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]

    def dyadic(self, min_exp: int, max_exp: int, mantissa_bits: int = 10, signed: bool = True) -> float:
        """±(1 + m / 2**mantissa_bits) · 2**e with uniform integers m and e in [min_exp, max_exp]: exact in float64.

        The magnitude lies in [2**min_exp, 2**(max_exp + 1)). Never zero.
        """
        _check_dyadic(min_exp, max_exp, mantissa_bits, 52, -1022, 1023)
        exponent = self.integer(min_exp, max_exp)
        mantissa = self.bits(mantissa_bits)
        sign = -1.0 if signed and self.bits(1) else 1.0
        return sign * (1.0 + mantissa * 2.0**-mantissa_bits) * 2.0**exponent

    def tensor(self, shape, min_exp: int, max_exp: int, mantissa_bits: int = 10, signed: bool = True) -> torch.Tensor:
        """A float32 tensor of dyadic rationals (see ``dyadic``), each exact in float32."""
        _check_dyadic(min_exp, max_exp, mantissa_bits, 23, -126, 127)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for size in shape:
            count *= size
        values = [self.dyadic(min_exp, max_exp, mantissa_bits, signed) for _ in range(count)]
        return torch.tensor(values, dtype=torch.float32).reshape(shape)

    def _block(self, label: str, width: int, start: int) -> int:
        """The first ``width`` bits, most significant first, of the blocks start, start + 1, … of one draw."""
        blocks = range(start, start + max(1, -(-width // 256)))
        labels = (label if block == 0 else f"{label}#{block}" for block in blocks)
        data = b"".join(hmac.new(self._secret, text.encode(), hashlib.sha256).digest() for text in labels)
        return int.from_bytes(data, "big") >> (8 * len(data) - width)


def _check_dyadic(min_exp, max_exp, mantissa_bits, most_bits, lowest, highest):
    if not 0 <= mantissa_bits <= most_bits:
        raise ValueError(f"mantissa_bits = {mantissa_bits} is not between 0 and {most_bits}")
    if not lowest <= min_exp <= max_exp <= highest:
        raise ValueError(f"exponents {min_exp} to {max_exp} are not an interval within {lowest} to {highest}")
