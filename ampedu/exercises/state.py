"""A known state of the process for the time of a check, and the learner's own state back afterwards."""

import contextlib
import io
import random
import sys
import warnings

import torch

try:
    import numpy
except ModuleNotFoundError:  # torch runs without it
    numpy = None

MAX_PRINTED = 4_000


@contextlib.contextmanager
def neutral(threads: int = 1):
    """Run the block on the CPU with ``threads`` torch threads, float32 by default, gradients, no autocast, no warnings.

    Subnormal numbers are kept.

    Restores all of these and the random states of torch (CPU), numpy and ``random``.
    """
    before = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
    randoms, numpys, device = random.getstate(), numpy and numpy.random.get_state(), torch.get_default_device()
    matmul, flushes = torch.backends.mkldnn.matmul.fp32_precision, _flushes_subnormals()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        try:
            torch.set_num_threads(threads)
            torch.set_default_dtype(torch.float32)
            if flushes:
                torch.set_flush_denormal(False)
            if device.type != "cpu":
                torch.set_default_device("cpu")
            if matmul not in ("none", "ieee"):
                torch.backends.mkldnn.matmul.fp32_precision = "ieee"
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_default_dtype(before[1])
            if flushes:
                torch.set_flush_denormal(True)
            torch.set_rng_state(before[2])
            if torch.get_default_device() != device:
                torch.set_default_device(device)
            if torch.backends.mkldnn.matmul.fp32_precision != matmul:
                torch.backends.mkldnn.matmul.fp32_precision = matmul
            random.setstate(randoms)
            if numpy:
                numpy.random.set_state(numpys)


def _flushes_subnormals():
    # torch.set_flush_denormal has no getter; it acts on Python's floats too.
    return sys.float_info.min / 2 == 0.0


def reseed():
    """The same random states before every case, so that no case depends on another. Leaves CUDA generators alone."""
    torch.default_generator.manual_seed(0)
    random.seed(0)
    if numpy:
        numpy.random.seed(0)


class Capped(io.StringIO):
    """A text stream that keeps the first MAX_PRINTED characters and drops the rest."""

    def write(self, text):
        """Keep what fits; claims to have written all."""
        room = MAX_PRINTED - self.tell()
        if room > 0:
            super().write(text[:room])
            if len(text) > room:
                super().write("\n… (cut)")
        return len(text)


@contextlib.contextmanager
def captured():
    """Catch what the block prints, on both streams; yields the stream that keeps it."""
    stream = Capped()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield stream
