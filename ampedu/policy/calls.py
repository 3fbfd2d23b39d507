"""One small call for each operation that autocast knows, as text: what `probe` runs, and what a lesson can show.

These are calls, not policies: what autocast does with them is found by running them.
"""

from dataclasses import dataclass

import torch

NAMES = "xyzuvw"  # what the text of an expression calls its inputs
INTS = "torch.tensor([{}], device=device)"
TARGET = INTS.format("0, 2")
SIGNS = INTS.format("1, -1")


@dataclass(frozen=True)
class Call:
    """expression: as `probe` takes it, with inputs x, y, z, u, v, w. shapes: of these inputs."""

    expression: str
    shapes: tuple[tuple[int, ...], ...]


def call_for(operation: str) -> Call | None:
    """The call of an operation such as "mm" or "sum.dim_IntList"; None if there is none here."""
    found = CALLS.get(operation)
    return Call(found[0], tuple(found[1:])) if found else None


def evaluate(expression: str, tensors, device: str = "cpu"):
    """The value of an expression in this process. It knows its inputs by NAMES, and torch, nn, F and device."""
    space = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "device": device}
    return eval(expression, space | dict(zip(NAMES, tensors, strict=False)))


V, M, S = (4,), (3, 4), (4, 4)  # a vector, a matrix, a square matrix
B, C = (2, 3, 4), (2, 4, 5)  # batches of matrices
IMAGE1, IMAGE2, IMAGE3 = (1, 2, 6), (1, 2, 6, 6), (1, 2, 6, 6, 6)
HEADS = (1, 2, 4, 8)
CELL = ((2, 3), (2, 4), (16, 3), (16, 4), (16,), (16,))
SPD = "x @ x.T + torch.eye(4, device=device, dtype=x.dtype)"

CALLS: dict[str, tuple] = {
    # Products
    "addbmm": ("torch.addbmm(x, y, z)", (3, 5), B, C),
    "addmm": ("torch.addmm(x, y, z)", (3, 5), M, (4, 5)),
    "addmv": ("torch.addmv(x, y, z)", (3,), M, V),
    "addr": ("torch.addr(x, y, z)", M, (3,), V),
    "baddbmm": ("torch.baddbmm(x, y, z)", (2, 3, 5), B, C),
    "bmm": ("torch.bmm(x, y)", B, C),
    "chain_matmul": ("torch.ops.aten.chain_matmul([x, y])", M, (4, 5)),
    "einsum": ("torch.einsum('ij,jk->ik', x, y)", M, (4, 5)),
    "linalg_multi_dot": ("torch.linalg.multi_dot([x, y])", M, (4, 5)),
    "linalg_vecdot": ("torch.linalg.vecdot(x, y)", M, M),
    "linear": ("F.linear(x, y, z)", M, (5, 4), (5,)),
    "matmul": ("x @ y", M, (4, 5)),
    "mm": ("torch.mm(x, y)", M, (4, 5)),
    "mv": ("torch.mv(x, y)", M, V),
    "_addmm_activation": ("torch.ops.aten._addmm_activation(x, y, z)", (5,), M, (4, 5)),
    "dot": ("torch.dot(x, y)", V, V),
    "vdot": ("torch.vdot(x, y)", V, V),
    "tensordot": ("torch.tensordot(x, y, dims=1)", M, (4, 5)),
    "bilinear": ("F.bilinear(x, y, z)", (2, 3), (2, 4), (5, 3, 4)),
    "cross": ("torch.cross(x, y, dim=1)", (2, 3), (2, 3)),
    # Convolutions
    "conv1d": ("F.conv1d(x, y)", IMAGE1, (3, 2, 3)),
    "conv2d": ("F.conv2d(x, y)", IMAGE2, (3, 2, 3, 3)),
    "conv3d": ("F.conv3d(x, y)", IMAGE3, (3, 2, 3, 3, 3)),
    "conv1d.padding": ("F.conv1d(x, y, padding='same')", IMAGE1, (3, 2, 3)),
    "conv2d.padding": ("F.conv2d(x, y, padding='same')", IMAGE2, (3, 2, 3, 3)),
    "conv3d.padding": ("F.conv3d(x, y, padding='same')", IMAGE3, (3, 2, 3, 3, 3)),
    "conv_tbc": ("torch.conv_tbc(x, y, z)", (6, 1, 2), (3, 2, 4), (4,)),
    "conv_transpose1d": ("F.conv_transpose1d(x, y)", IMAGE1, (2, 3, 3)),
    "conv_transpose2d.input": ("F.conv_transpose2d(x, y)", IMAGE2, (2, 3, 3, 3)),
    "conv_transpose3d.input": ("F.conv_transpose3d(x, y)", IMAGE3, (2, 3, 3, 3, 3)),
    "convolution": ("torch.ops.aten.convolution(x, y, None, [1], [0], [1], False, [0], 1)", IMAGE1, (3, 2, 3)),
    "_convolution": (
        "torch.ops.aten._convolution(x, y, None, [1], [0], [1], False, [0], 1, False, False, True, True)",
        IMAGE1,
        (3, 2, 3),
    ),
    "_convolution.deprecated": (
        "torch.ops.aten._convolution.deprecated(x, y, None, [1], [0], [1], False, [0], 1, False, False, True)",
        IMAGE1,
        (3, 2, 3),
    ),
    "cudnn_convolution": ("torch.cudnn_convolution(x, y, [0], [1], [1], 1, False, False, True)", IMAGE1, (3, 2, 3)),
    "cudnn_convolution_transpose": (
        "torch.cudnn_convolution_transpose(x, y, [0, 0], [0, 0], [1, 1], [1, 1], 1, False, False, True)",
        *[IMAGE2, (2, 3, 3, 3)],
    ),
    "_mps_convolution": (
        "torch.ops.aten._mps_convolution(x, y, None, [0, 0], [1, 1], [1, 1], 1)",
        *[IMAGE2, (3, 2, 3, 3)],
    ),
    # Attention and recurrent cells
    "scaled_dot_product_attention": ("F.scaled_dot_product_attention(x, y, z)", HEADS, HEADS, HEADS),
    "_scaled_dot_product_flash_attention": (
        "torch.ops.aten._scaled_dot_product_flash_attention(x, y, z)[0]",
        *[HEADS] * 3,
    ),
    "_native_multi_head_attention": (
        "torch.ops.aten._native_multi_head_attention(x, x, x, 8, 2, y, z, u, v)[0]",
        *[(2, 4, 8), (24, 8), (24,), (8, 8), (8,)],
    ),
    "gru_cell": ("torch.gru_cell(x, y, z, u)", (2, 3), (2, 4), (12, 3), (12, 4)),
    "lstm_cell": ("torch.lstm_cell(x, [y, y], z, u, v, w)[0]", *CELL),
    "rnn_relu_cell": ("torch.rnn_relu_cell(x, y, z, u)", (2, 3), (2, 4), (4, 3), (4, 4)),
    "rnn_tanh_cell": ("torch.rnn_tanh_cell(x, y, z, u)", (2, 3), (2, 4), (4, 3), (4, 4)),
    "_thnn_fused_gru_cell": ("torch.ops.aten._thnn_fused_gru_cell(x, y, z)[0]", (2, 12), (2, 12), (2, 4)),
    "_thnn_fused_lstm_cell": (
        "torch.ops.aten._thnn_fused_lstm_cell(x, y, z, u, v)[0]",
        *[(2, 16), (2, 16), (2, 4), (16,), (16,)],
    ),
    # Functions of each element
    **{
        name: (f"torch.{name}(x)", M)
        for name in "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan".split()
    },
    "softplus": ("F.softplus(x)", M),
    "prelu": ("F.prelu(x, y)", M, (1,)),
    "pow.Scalar": ("2 ** x", M),
    "pow.Tensor_Scalar": ("x ** 2", M),
    "pow.Tensor_Tensor": ("x ** y", M, M),
    "addcdiv": ("torch.addcdiv(x, y, z)", M, M, M),
    "addcmul": ("torch.addcmul(x, y, z)", M, M, M),
    "atan2": ("torch.atan2(x, y)", M, M),
    "polar": ("torch.polar(x, y).real", M, M),
    # Sums, norms, softmax
    "sum": ("x.sum()", M),
    "sum.dim_IntList": ("x.sum(dim=1)", M),
    "prod": ("x.prod()", M),
    "prod.dim_int": ("x.prod(dim=1)", M),
    "cumsum": ("x.cumsum(dim=1)", M),
    "cumprod": ("x.cumprod(dim=1)", M),
    "softmax.int": ("F.softmax(x, dim=1)", M),
    "log_softmax.int": ("F.log_softmax(x, dim=1)", M),
    "logsumexp": ("torch.logsumexp(x, dim=1)", M),
    "norm.Scalar": ("torch.ops.aten.norm.Scalar(x)", M),
    "norm.ScalarOpt_dim": ("torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1])", M),
    "frobenius_norm.dim": ("torch.ops.aten.frobenius_norm.dim(x, [1])", M),
    "nuclear_norm": ("torch.ops.aten.nuclear_norm(x)", M),
    "nuclear_norm.dim": ("torch.ops.aten.nuclear_norm.dim(x, [0, 1])", M),
    "linalg_vector_norm": ("torch.linalg.vector_norm(x)", M),
    "linalg_matrix_norm": ("torch.linalg.matrix_norm(x, 1)", M),
    "linalg_matrix_norm.str_ord": ("torch.linalg.matrix_norm(x)", M),
    "renorm": ("torch.renorm(x, 2, 0, 1.0)", M),
    "dist": ("torch.dist(x, y)", M, M),
    "cdist": ("torch.cdist(x, y)", M, M),
    "pdist": ("F.pdist(x)", M),
    "cosine_similarity": ("F.cosine_similarity(x, y)", M, M),
    "trace": ("torch.trace(x)", S),
    "quantile": ("torch.quantile(x, y)", V, (2,)),
    "quantile.scalar": ("torch.quantile(x, 0.5)", V),
    "nanquantile": ("torch.nanquantile(x, y)", V, (2,)),
    "nanquantile.scalar": ("torch.nanquantile(x, 0.5)", V),
    # Normalization
    "layer_norm": ("F.layer_norm(x, (4,))", M),
    "native_layer_norm": ("torch.ops.aten.native_layer_norm(x, [4], None, None, 1e-5)[0]", M),
    "rms_norm": ("F.rms_norm(x, (4,))", M),
    "group_norm": ("F.group_norm(x, 2)", M),
    "batch_norm": ("F.batch_norm(x, None, None, training=True)", M),
    # Losses
    "binary_cross_entropy": ("F.binary_cross_entropy(x, y)", M, M),
    "binary_cross_entropy_with_logits": ("F.binary_cross_entropy_with_logits(x, y)", M, M),
    "cosine_embedding_loss": (f"F.cosine_embedding_loss(x, y, {SIGNS})", (2, 4), (2, 4)),
    "cross_entropy_loss": (f"F.cross_entropy(x, {TARGET})", (2, 4)),
    "ctc_loss.IntList": (
        f"torch.ctc_loss(x.log_softmax(2), {INTS.format('[1, 2], [1, 2]')}, [5, 5], [2, 2])",
        (5, 2, 3),
    ),
    "ctc_loss.Tensor": (
        f"torch.ctc_loss(x.log_softmax(2), {INTS.format('[1, 2], [1, 2]')}, "
        f"{INTS.format('5, 5')}, {INTS.format('2, 2')})",
        (5, 2, 3),
    ),
    "hinge_embedding_loss": (f"F.hinge_embedding_loss(x, {SIGNS})", (2,)),
    "huber_loss": ("F.huber_loss(x, y)", M, M),
    "kl_div": ("torch.ops.aten.kl_div(x, y)", M, M),
    "l1_loss": ("F.l1_loss(x, y)", M, M),
    "margin_ranking_loss": (f"F.margin_ranking_loss(x, y, {SIGNS})", (2,), (2,)),
    "mse_loss": ("F.mse_loss(x, y)", M, M),
    "multi_margin_loss": (f"F.multi_margin_loss(x, {TARGET})", (2, 4)),
    "multilabel_margin_loss": (f"F.multilabel_margin_loss(x, {INTS.format('[0, 1], [1, -1]')})", (2, 2)),
    "multilabel_margin_loss_forward": (
        f"torch.ops.aten.multilabel_margin_loss_forward(x, {INTS.format('[0, 1], [1, -1]')}, 1)[0]",
        (2, 2),
    ),
    "nll_loss": (f"F.nll_loss(x, {TARGET})", (2, 4)),
    "nll_loss2d": (f"F.nll_loss(x, {INTS.format('[[0, 1]]')})", (1, 3, 1, 2)),
    "poisson_nll_loss": ("F.poisson_nll_loss(x, y)", M, M),
    "smooth_l1_loss": ("F.smooth_l1_loss(x, y)", M, M),
    "soft_margin_loss": ("F.soft_margin_loss(x, y)", M, M),
    "triplet_margin_loss": ("F.triplet_margin_loss(x, y, z)", M, M, M),
    # Assembling and indexing
    "cat": ("torch.cat([x, y])", M, M),
    "stack": ("torch.stack([x, y])", M, M),
    "index_copy": (f"x.index_copy(0, {TARGET}, y)", M, (2, 4)),
    "index_put": (f"x.index_put(({TARGET},), y)", M, (2, 4)),
    "scatter_add": ("x.scatter_add(0, torch.tensor([[0, 1, 2, 0]] * 3, device=device), y)", M, M),
    "grid_sampler": ("F.grid_sample(x, y, align_corners=False)", IMAGE2, (1, 3, 3, 2)),
    "grid_sampler_2d": ("torch.grid_sampler_2d(x, y, 0, 0, False)", IMAGE2, (1, 3, 3, 2)),
    "grid_sampler_3d": ("torch.grid_sampler_3d(x, y, 0, 0, False)", IMAGE3, (1, 3, 3, 3, 3)),
    "_grid_sampler_2d_cpu_fallback": (
        "torch.ops.aten._grid_sampler_2d_cpu_fallback(x, y, 0, 0, False)",
        *[IMAGE2, (1, 3, 3, 2)],
    ),
    "view_as_complex": ("torch.view_as_complex(x).real", (3, 2)),
    "fake_quantize_per_tensor_affine": ("torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)", M),
    # Resizing, pooling, padding
    "upsample_nearest1d": ("F.interpolate(x, size=3)", IMAGE1),
    "upsample_nearest2d": ("torch.ops.aten.upsample_nearest2d(x, [3, 3])", IMAGE2),
    "upsample_nearest3d": ("torch.ops.aten.upsample_nearest3d(x, [3, 3, 3])", IMAGE3),
    "upsample_linear1d": ("torch.ops.aten.upsample_linear1d(x, [3], False)", IMAGE1),
    "upsample_bilinear2d": ("torch.ops.aten.upsample_bilinear2d(x, [3, 3], False)", IMAGE2),
    "upsample_trilinear3d": ("torch.ops.aten.upsample_trilinear3d(x, [3, 3, 3], False)", IMAGE3),
    "upsample_bicubic2d": ("torch.ops.aten.upsample_bicubic2d(x, [3, 3], False)", IMAGE2),
    "_upsample_bilinear2d_aa": ("torch.ops.aten._upsample_bilinear2d_aa(x, [3, 3], False)", IMAGE2),
    "_upsample_bicubic2d_aa": ("torch.ops.aten._upsample_bicubic2d_aa(x, [3, 3], False)", IMAGE2),
    "_upsample_nearest_exact1d": ("F.interpolate(x, size=3, mode='nearest-exact')", IMAGE1),
    "_upsample_nearest_exact2d": ("F.interpolate(x, size=3, mode='nearest-exact')", IMAGE2),
    "_upsample_nearest_exact3d": ("F.interpolate(x, size=3, mode='nearest-exact')", IMAGE3),
    "avg_pool3d": ("F.avg_pool3d(x, 2)", IMAGE3),
    "max_pool3d": ("F.max_pool3d(x, 2)", IMAGE3),
    "max_unpool2d": ("F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)", IMAGE2),
    "max_unpool3d": ("F.max_unpool3d(*F.max_pool3d(x.float(), 2, return_indices=True), 2)", IMAGE3),
    "adaptive_avg_pool3d": ("F.adaptive_avg_pool3d(x, 2)", IMAGE3),
    "adaptive_max_pool3d": ("F.adaptive_max_pool3d(x, 2)", IMAGE3),
    "fractional_max_pool2d": ("torch.ops.aten.fractional_max_pool2d(x, 2, 3, y)[0]", IMAGE2, (1, 2, 2)),
    "fractional_max_pool3d": ("torch.ops.aten.fractional_max_pool3d(x, 2, 3, y)[0]", IMAGE3, (1, 2, 3)),
    "reflection_pad1d": ("F.pad(x, (1, 1), mode='reflect')", IMAGE1),
    "reflection_pad2d": ("F.pad(x, (1, 1, 1, 1), mode='reflect')", IMAGE2),
    "replication_pad1d": ("F.pad(x, (1, 1), mode='replicate')", IMAGE1),
    "replication_pad2d": ("F.pad(x, (1, 1, 1, 1), mode='replicate')", IMAGE2),
    "replication_pad3d": ("F.pad(x, (1, 1, 1, 1, 1, 1), mode='replicate')", IMAGE3),
    # Fourier transforms: `.real` because the results are complex64
    **{
        f"fft_{name}": (f"torch.fft.{name}(x).real", M if "2" in name or "n" in name else V)
        for name in "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft ihfft".split()
    },
    "stft": ("torch.ops.aten.stft(x, 4, return_complex=True).real", (16,)),
    "stft.center": ("torch.ops.aten.stft.center(x, 4, return_complex=True).real", (16,)),
    # Linear algebra
    **{
        f"linalg_{name}": (f"torch.linalg.{name}({SPD}){part}", S)
        for names, part in (
            ("cholesky cond inv svdvals eigvalsh", ""),
            ("cholesky_ex inv_ex qr svd eigh", "[0]"),
            ("eig", "[0].real"),
            ("eigvals", ".real"),
        )
        for name in names.split()
    },
    "linalg_cond.p_str": (f"torch.linalg.cond({SPD}, 'fro')", S),
    "linalg_householder_product": ("torch.linalg.householder_product(x, y)", S, V),
    "linalg_lstsq": ("torch.linalg.lstsq(x, y)[0]", S, S),
    "linalg_solve": (f"torch.linalg.solve({SPD}, y)", S, S),
    "linalg_tensorinv": ("torch.linalg.tensorinv(x, ind=1)", S),
    "linalg_tensorsolve": ("torch.linalg.tensorsolve(x, y)", S, V),
    "cholesky": (f"torch.cholesky({SPD})", S),
    "cholesky_inverse": ("torch.cholesky_inverse(x)", S),
    "cholesky_solve": ("torch.cholesky_solve(x, y)", S, S),
    "geqrf": ("torch.geqrf(x)[0]", S),
    "inverse": (f"torch.inverse({SPD})", S),
    "lu_solve": (f"torch.lu_solve(x, y, {INTS.format('1, 2, 3, 4')}.int())", S, S),
    "_lu_with_info": ("torch.ops.aten._lu_with_info(x)[0]", S),
    "orgqr": ("torch.orgqr(x, y)", S, V),
    "ormqr": ("torch.ormqr(x, y, z)", S, V, S),
    "pinverse": ("torch.pinverse(x)", S),
    "qr": ("torch.ops.aten.qr(x)[0]", S),
    "svd": ("torch.ops.aten.svd(x)[1]", S),
    "triangular_solve": ("torch.ops.aten.triangular_solve(x, y)[0]", S, S),
}
