"""What a GPU's kernels keep for backward where the CPU's keep more: dropout and attention with dropout.

The CPU keeps dropout's mask in the dtype of the input, and attention with dropout keeps the whole matrix of weights.
CUDA's dropout (aten::native_dropout) keeps a mask of one byte an element; its fused attention draws the mask again in
backward and keeps what it keeps without dropout. Only bytes are right here: attention runs without dropout.
"""

import contextlib
import warnings

import torch

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


@contextlib.contextmanager
def gpu_kernels():
    """Inside, dropout and attention on CPU tensors keep for backward what they keep on a GPU. Changes the process."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
            library.impl("dropout", _dropout, "AutogradCPU")
            library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        yield
    finally:
        library._destroy()


def _dropout(input, p, train):
    return torch.ops.aten.native_dropout(input, p, train)[0] if train and 0 < p < 1 else _plain_dropout(input, p, train)


def _plain_dropout(input, p, train):
    return torch.ops.aten.dropout.default.decompose(input, p, train)


def _attention(query, key, value, mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    return ATTENTION.decompose(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
