"""Known differences between the documented lists and torch: names that differ, and reasons. No policies stand here."""

from typing import NamedTuple

# The documentation names functions of Python; the dispatcher knows operations.
ALIASES = {
    "__matmul__": ("matmul",),
    "multi_dot": ("linalg_multi_dot",),
    "GRUCell": ("gru_cell", "_thnn_fused_gru_cell"),
    "LSTMCell": ("lstm_cell", "_thnn_fused_lstm_cell"),
    "RNNCell": ("rnn_tanh_cell", "rnn_relu_cell"),
    "grid_sample": ("grid_sampler",),
    "nll_loss": ("nll_loss", "nll_loss2d"),
    "layer_norm": ("layer_norm", "native_layer_norm"),
}


class Composed(NamedTuple):
    """A documented name without a kernel: the operations that it runs, and a call that shows what comes out."""

    through: tuple[str, ...]
    expression: str
    shapes: tuple


M = (3, 4)
COMPOSED = {
    "cross_entropy": Composed(
        ("log_softmax", "nll_loss"), "F.cross_entropy(x, torch.tensor([0, 1, 2], device=device))", (M,)
    ),
    "normalize": Composed(("linalg_vector_norm", "norm"), "F.normalize(x)", (M,)),
    "softmin": Composed(("softmax",), "F.softmin(x, dim=1)", (M,)),
    "__rdiv__": Composed(("reciprocal",), "1 / x", (M,)),
    "__rtruediv__": Composed(("reciprocal",), "1 / x", (M,)),
    "__rpow__": Composed(("pow",), "2 ** x", (M,)),
}

FOUND_ONLY = {
    "scaled_dot_product_attention": "attention is two matrix products; the documentation lists it for the CPU only",
    "_scaled_dot_product_flash_attention": "one of the kernels of scaled_dot_product_attention",
    "einsum": "it is computed by bmm, and is cast before it takes its inputs apart",
    "linalg_vecdot": "a product like dot, but on this list; the documentation lists it for the CPU only",
    "chain_matmul": "the old name of linalg.multi_dot",
    "rms_norm": "on the list since torch 2.12, like layer_norm, and not documented yet",
    "huber_loss": "a loss like smooth_l1_loss; not documented",
    "logsumexp": "the log of a sum of exp, which overflows in float16; not documented",
    "vdot": "like dot; not documented",
    "norm": "documented for CUDA",
    "frobenius_norm": "norm with p=2",
    "nuclear_norm": "the nuclear norm: a sum of singular values",
    "linalg_vector_norm": "torch.linalg's form of norm",
    "linalg_matrix_norm": "torch.linalg's form of norm",
    "nll_loss2d": "nll_loss for images",
    "native_layer_norm": "the kernel of layer_norm",
    "convolution": "what conv1d, conv2d and conv3d call",
    "_convolution": "what conv1d, conv2d and conv3d call",
    "conv_tbc": "a one-dimensional convolution with another order of dimensions",
    "cudnn_convolution": "the cuDNN kernel of conv1d, conv2d and conv3d",
    "cudnn_convolution_transpose": "the cuDNN kernel of the transposed convolutions",
    "_cudnn_rnn": "nn.LSTM, nn.GRU and nn.RNN on a GPU",
    "_addmm_activation": "addmm with an activation in one kernel",
    "grid_sampler": "the operation behind grid_sample",
    "cholesky": "the old name of linalg.cholesky",
    "linalg_multi_dot": "documented for CUDA, as multi_dot",
    "lstm_cell": "documented for CUDA, as LSTMCell",
    "pow": "documented for CUDA",
    "reciprocal": "documented for CUDA",
    "_mps_convolution": "what conv1d and conv2d call on MPS",
}
BY_DEVICE = {
    ("mps", "batch_norm"): "only MPS casts it to float32; on CUDA, XPU and CPU it is on no list",
    ("mps", "conv_transpose3d"): "only MPS has it on the float32 list",
    ("mps", "scaled_dot_product_attention"): "attention is two matrix products",
    ("mps", "linalg_vector_norm"): "torch.linalg's form of norm; MPS has no kernel for norm itself",
}
# By the beginning of the name.
FAMILIES = (
    ("upsample_", "F.interpolate in all modes but 'area'; not documented"),
    ("_upsample_", "F.interpolate in all modes but 'area'; not documented"),
)
