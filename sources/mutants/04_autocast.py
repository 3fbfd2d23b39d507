"""Wrong answers to lab 04 that real people give, each with the message that the check shows."""

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ampedu.exercises import mutant

ELIGIBLE = (torch.float16, torch.bfloat16, torch.float32)
RIGHT = {
    "float16": (1, 3, 5, 7, 9, 11, 13, 14, 16, 17),
    "float32": (2, 4, 6, 8, 10, 12, 15, 18, 19),
    "float64": (20,),
}


def moved(**numbers):
    """The twenty dtypes with some numbers in another list: moved(float32=(7,))."""
    elsewhere = [number for group in numbers.values() for number in group]
    kept = {name: [number for number in group if number not in elsewhere] for name, group in RIGHT.items()}
    return {name: sorted([*group, *numbers.get(name, ())]) for name, group in kept.items()}


@mutant(
    "04.predicted",
    "You turned nearly everything into float16. Autocast casts only what is on a list, and one of the lists says "
    "float32: softmax, sum, exp, pow, layer_norm and the losses.",
)
def all_low():
    return moved(float16=RIGHT["float32"])


@mutant(
    "04.predicted",
    "These are the dtypes under the CPU's autocast. On the CPU, softmax, exp, sum, pow and layer_norm are on no list. "
    "The question is about CUDA, whose lists are longer.",
)
def lists_of_the_cpu():
    return moved(float16=(4, 6, 8, 10, 12, 19))


@mutant(
    "04.predicted",
    "You made every normalization and every mean float32. batch_norm and mean are on no list: they run in the dtype "
    "that arrives. (The batch_norm kernel keeps its statistics in float32 by itself.)",
)
def reductions_and_norms_wide():
    return moved(float32=(7, 13, 16))


@mutant(
    "04.predicted",
    "Only batch_norm is wrong. Many pages list it beside layer_norm, but it is on no CUDA list: float16 goes in and "
    "comes out, with the statistics in float32 inside the kernel.",
)
def batch_norm_wide():
    return moved(float32=(13,))


@mutant(
    "04.predicted",
    "Only mean is missing. sum is on the float32 list, mean is on none. So the mean of a float16 tensor is float16, "
    "and so is a loss that you write by hand and end with mean().",
)
def means_wide():
    return moved(float32=(7, 16))


@mutant(
    "04.predicted",
    "A loss is float32 if its name is on the list, as cross_entropy's parts are. The one of number 16 is written by "
    "hand, from operations that are on no list: it stays float16.",
)
def every_loss_wide():
    return moved(float32=(16,))


@mutant(
    "04.predicted",
    "The loss is not float16: cross_entropy is made of log_softmax and nll_loss, and both are on the float32 list.",
)
def cross_entropy_low():
    return moved(float16=(15,))


@mutant(
    "04.predicted",
    "float() inside a region does not protect what follows: matmul casts its inputs again. It takes a region that is "
    "switched off as well.",
)
def float_protects():
    return moved(float32=(17,))


@mutant(
    "04.predicted",
    "Attention contains a softmax, but the name scaled_dot_product_attention itself is on the lower-precision list, "
    "and autocast looks no deeper. The kernel takes care of its softmax.",
)
def attention_wide():
    return moved(float32=(14,))


@mutant(
    "04.predicted",
    "tensordot looks like a matrix product, but it is on the promote list: with float32 inputs it stays in float32. "
    "matmul and einsum are on the lower-precision list.",
)
def tensordot_low():
    return moved(float16=(19,))


@mutant(
    "04.predicted",
    "Where float16 meets float32 and no list is involved, torch promotes as always, to float32: x + h, and cat too.",
)
def promotion_low():
    return moved(float16=(2, 18))


@mutant(
    "04.predicted",
    "Autocast never touches float64. The product of two float64 matrices is float64.",
)
def double_low():
    return moved(float16=(20,))


def cast_all(policy, dtypes, low, widest=None, eligible=ELIGIBLE):
    """input_dtypes, with the parts that mutants replace."""
    if policy is None:
        return list(dtypes)
    narrow = policy == "lower_precision"
    if policy == "promote_widest":
        narrow = widest(dtypes) if widest else torch.float32 not in dtypes
    return [(low if narrow else torch.float32) if dtype in eligible else dtype for dtype in dtypes]


@mutant(
    "04.input_dtypes",
    "You cast everything to the dtype of the region. Two of the three policies want float32, one always and one if "
    "one of the inputs has it.",
)
def always_low(policy, dtypes, low):
    return cast_all("lower_precision", dtypes, low) if policy else list(dtypes)


@mutant(
    "04.input_dtypes",
    "promote_widest is not float32. If all inputs have the dtype of the region already, nothing is cast.",
)
def promotes_to_float32(policy, dtypes, low):
    return cast_all(policy, dtypes, low, widest=lambda dtypes: False)


@mutant(
    "04.input_dtypes",
    "promote_widest takes the widest input. float32 inputs stay float32 there, also if all of them are.",
)
def promotes_only_mixed(policy, dtypes, low):
    return cast_all(policy, dtypes, low, widest=lambda dtypes: not {torch.float32, low} <= set(dtypes))


@mutant(
    "04.input_dtypes",
    "You cast float64. Autocast never does: whoever uses float64 wants it.",
)
def casts_double(policy, dtypes, low):
    return cast_all(policy, dtypes, low, eligible=(*ELIGIBLE, torch.float64))


@mutant(
    "04.input_dtypes",
    "float64 does not count as the widest input: promote_widest looks past it. With float16 and float64, float16 "
    "stays float16.",
)
def double_is_the_widest(policy, dtypes, low):
    return cast_all(policy, dtypes, low, widest=lambda dtypes: not {torch.float32, torch.float64} & set(dtypes))


@mutant(
    "04.input_dtypes",
    "You cast integers and bools too. They are indices, class numbers and masks: only floating-point tensors are cast.",
)
def casts_integers(policy, dtypes, low):
    return cast_all(policy, dtypes, low, eligible=(*ELIGIBLE, torch.int64, torch.bool))


@mutant(
    "04.input_dtypes",
    "None means: on no list. Then autocast does nothing, and torch promotes inside the operation, if it can.",
)
def unlisted_promotes(policy, dtypes, low):
    return cast_all(policy or "promote_widest", dtypes, low)


@mutant(
    "04.input_dtypes",
    "Only float32 inputs of lower_precision are cast by you. The other 16-bit dtype is cast too: in a bfloat16 region, "
    "a float16 input becomes bfloat16.",
)
def only_float32_is_cast(policy, dtypes, low):
    if policy == "lower_precision":
        return cast_all(policy, dtypes, low, eligible=(torch.float32,))
    return cast_all(policy, dtypes, low)


LISTS = {
    "lower_precision": "linear matmul mm bmm conv2d einsum linalg_multi_dot scaled_dot_product_attention",
    "float32": "exp log pow rsqrt softplus layer_norm mse_loss l1_loss nll_loss binary_cross_entropy_with_logits",
    "float32_set_dtype": "softmax log_softmax sum cumsum prod",
    "promote_widest": "addcmul atan2 cross dot tensordot index_put scatter_add",
    "banned": "binary_cross_entropy",
}
POLICY = {name: policy for policy, names in LISTS.items() for name in names.split()}


def mapped(function, values):
    if isinstance(values, dict):
        return {key: mapped(function, value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)([mapped(function, value) for value in values])
    return function(values) if isinstance(values, torch.Tensor) else values


class Mode(TorchFunctionMode):
    """MyAutocast in parts, which the mutants below replace one at a time."""

    eligible = ELIGIBLE
    bans = respects_dtype = respects_out = names = nested = True

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def policy(self, name):
        """The policy of a function."""
        return POLICY.get(name)

    def target(self, policy, found):
        """The dtype to cast to, or None."""
        if policy == "lower_precision" or (policy == "promote_widest" and torch.float32 not in found):
            return self.dtype
        return torch.float32

    def cast(self, tensor, to):
        """One argument."""
        return tensor.to(to) if tensor.dtype in self.eligible else tensor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        policy = self.policy(func.__name__)
        if policy == "banned" and self.bans:
            raise RuntimeError("unsafe to autocast")
        given = policy == "float32_set_dtype" and kwargs.get("dtype") is not None and self.respects_dtype
        out = kwargs.get("out") is not None and self.respects_out
        if policy in (None, "banned") or given or out:
            return func(*args, **kwargs)
        found = []
        mapped(lambda tensor: found.append(tensor.dtype), [args, kwargs])
        return self.finish(func, args, kwargs, self.target(policy, found))

    def finish(self, func, args, kwargs, to):
        """Cast and call."""
        args = self.arguments(args, to)
        if self.names:
            kwargs = mapped(lambda tensor: self.cast(tensor, to), kwargs)
        return func(*args, **kwargs)

    def arguments(self, args, to):
        """The positional arguments, cast."""
        if self.nested:
            return mapped(lambda tensor: self.cast(tensor, to), args)
        return tuple(self.cast(value, to) if isinstance(value, torch.Tensor) else value for value in args)


@mutant(
    "04.own_autocast",
    "You cast the results instead of the inputs. The dtypes are right; the operation itself ran in the old precision, "
    "and what overflowed there stays infinite.",
)
class CastsTheResult(Mode):
    def finish(self, func, args, kwargs, to):
        result = func(*args, **kwargs)
        return result.to(to) if isinstance(result, torch.Tensor) and result.dtype in ELIGIBLE else result


@mutant(
    "04.own_autocast",
    "You treat everything that is not on the float32 list as lower precision. An operation on no list must be left "
    "alone, and torch's own promotion decides.",
)
class UnlistedIsLow(Mode):
    def policy(self, name):
        skip = name.endswith("_") or name in ("to", "float", "double", "clone", "embedding", "cat", "empty")
        return POLICY.get(name, None if skip else "lower_precision")


@mutant(
    "04.own_autocast",
    "The lower-precision list works. For the other lists you do nothing: exp, layer_norm and softmax must get float32 "
    "inputs, and mixed inputs of promote_widest must become equal.",
)
class OnlyLowerPrecision(Mode):
    def policy(self, name):
        policy = POLICY.get(name)
        return policy if policy in ("lower_precision", "banned") else None


@mutant(
    "04.own_autocast",
    "promote_widest is missing: atan2, addcmul, tensordot, index_put and scatter_add need all their inputs in the "
    "widest dtype among them.",
)
class NoPromotion(Mode):
    def policy(self, name):
        policy = POLICY.get(name)
        return None if policy == "promote_widest" else policy


@mutant(
    "04.own_autocast",
    "You cast promote_widest operations to float32 always. If no input is float32, they stay in the dtype "
    "of the region.",
)
class PromotionIsFloat32(Mode):
    def target(self, policy, found):
        return self.dtype if policy == "lower_precision" else torch.float32


@mutant(
    "04.own_autocast",
    "You cast promote_widest operations to the dtype of the region. If one input is float32, all of them become "
    "float32: index_put must not round the tensor it writes into.",
)
class PromotionIsLow(Mode):
    def target(self, policy, found):
        return self.dtype if policy in ("lower_precision", "promote_widest") else torch.float32


@mutant(
    "04.own_autocast",
    "Arguments that are passed by name are not cast. F.linear(t, w, bias=b) has one: go through kwargs as well.",
)
class ForgetsNames(Mode):
    names = False


@mutant(
    "04.own_autocast",
    "You cast only arguments that are tensors themselves. multi_dot takes a list of them: use mapped.",
)
class ForgetsLists(Mode):
    nested = False


@mutant(
    "04.own_autocast",
    "You overrule the caller's dtype=. softmax(dtype=…) must run as it was asked for, without any cast.",
)
class OverrulesDtype(Mode):
    respects_dtype = False

    def finish(self, func, args, kwargs, to):
        if kwargs.get("dtype") is not None:
            kwargs = {**kwargs, "dtype": torch.float32}
        return super().finish(func, args, kwargs, to)


@mutant(
    "04.own_autocast",
    "You cast the inputs of a call with out=. The caller has chosen the dtype by giving the tensor for the result: "
    "leave such calls alone.",
)
class CastsDespiteOut(Mode):
    respects_out = False

    def finish(self, func, args, kwargs, to):
        out = kwargs.get("out")
        if out is None:
            return super().finish(func, args, kwargs, to)
        result = func(*self.arguments(args, to), out=out.to(to))
        return result


@mutant(
    "04.own_autocast",
    "You cast float64 as well. Autocast leaves float64 alone, and so does torch's.",
)
class CastsDouble(Mode):
    eligible = (*ELIGIBLE, torch.float64)


@mutant(
    "04.own_autocast",
    "You cast integer tensors too. Class numbers and indices must stay int64: cast only the three "
    "floating-point dtypes.",
)
class CastsIntegers(Mode):
    eligible = (*ELIGIBLE, torch.int64)


@mutant(
    "04.own_autocast",
    'binary_cross_entropy must raise RuntimeError: its policy is "banned".',
)
class BansNothing(Mode):
    bans = False


def counted(tensors, events, cache_enabled=True, kept=lambda t: t["requires_grad"] and t["leaf"],
            cleared=lambda depth: depth == 0, low=True, outside=False):  # fmt: skip
    """count_casts, with the parts that mutants replace."""
    depth, casts, cache = 0, 0, set()
    for event in events:
        if event == "enter":
            depth += 1
        elif event == "leave":
            depth -= 1
            if cleared(depth):
                cache.clear()
        elif depth or outside:
            for name in event:
                if name in cache or (low and tensors[name]["dtype"] == torch.float16):
                    continue
                casts += 1
                if cache_enabled and kept(tensors[name]):
                    cache.add(name)
    return casts


@mutant(
    "04.count_casts",
    "You never use the cache. A cast weight is kept until the outermost region ends; only with cache_enabled=False is "
    "every use a cast.",
)
def never_keeps(tensors, events, cache_enabled=True):
    return counted(tensors, events, False)


@mutant(
    "04.count_casts",
    "You keep every cast. The cache takes weights only: float32 leaves that require a gradient. Inputs, activations "
    "and frozen weights are cast each time.",
)
def keeps_everything(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, kept=lambda t: True)


@mutant(
    "04.count_casts",
    "You keep frozen weights and inputs, because they are leaves. The cache asks for requires_grad too: a frozen "
    "weight is cast at every use.",
)
def keeps_leaves(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, kept=lambda t: t["leaf"])


@mutant(
    "04.count_casts",
    "You keep activations, because they require a gradient. The cache takes leaves only: an activation is new in "
    "every step.",
)
def keeps_what_requires_grad(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, kept=lambda t: t["requires_grad"])


@mutant(
    "04.count_casts",
    "Your cache survives the region. It is emptied when the outermost region ends: otherwise the next step would run "
    "with the weights of the last one.",
)
def never_empties(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, cleared=lambda depth: False)


@mutant(
    "04.count_casts",
    "You empty the cache whenever a region ends. Only the end of the outermost one empties it.",
)
def empties_early(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, cleared=lambda depth: True)


@mutant(
    "04.count_casts",
    "You count tensors that are float16 already. There is nothing to cast.",
)
def counts_low_tensors(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, low=False)


@mutant(
    "04.count_casts",
    "You count calls outside of the regions. Autocast is off there.",
)
def counts_outside(tensors, events, cache_enabled=True):
    return counted(tensors, events, cache_enabled, outside=True)


def floats(tensors):
    return [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]


@mutant(
    "04.in_float32",
    "float() alone is no island: inside the region, matmul casts its inputs again. The call must stand in a region for "
    "the device of the tensors that is switched off.",
)
def only_float(function, *tensors):
    return function(*floats(tensors))


@mutant(
    "04.in_float32",
    "You switched the region off and cast nothing. Inputs from earlier layers are in 16 bits already: cast them to "
    "float32 yourself.",
)
def only_switched_off(function, *tensors):
    with torch.autocast("cpu", enabled=False):
        return function(*tensors)


@mutant(
    "04.in_float32",
    "You ran the function in 16 bits and cast its result. The digits are gone by then.",
)
def late_cast(function, *tensors):
    return function(*tensors).float()


@mutant(
    "04.in_float32",
    "You cast the integers too. Indices must stay integers: cast only what is_floating_point().",
)
def casts_indices(function, *tensors):
    with torch.autocast("cpu", enabled=False):
        return function(*(tensor.float() for tensor in tensors))


@mutant(
    "04.in_float32",
    "The island is right, but you cast its result back to the dtype of the input. Return what the function returns.",
)
def casts_back(function, *tensors):
    with torch.autocast("cpu", enabled=False):
        return function(*floats(tensors)).to(tensors[0].dtype)


@mutant(
    "04.in_float32",
    "You switch autocast off and it stays off. A with statement ends the island when the function returns.",
)
def stays_off(function, *tensors):
    torch.set_autocast_enabled("cpu", False)
    return function(*floats(tensors))


def clipped(forward, backward=lambda ctx, x, w, grad: (grad @ w.T, x.T @ grad), wrap=True, **options):
    """An autograd function for clipped_product, from the parts that mutants replace."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return forward(x, w)

        @staticmethod
        def backward(ctx, grad):
            return backward(ctx, *ctx.saved_tensors, grad)

    if wrap:
        Product.forward = staticmethod(torch.amp.custom_fwd(Product.forward, device_type="cpu", **options))
        Product.backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type="cpu"))
    return Product.apply


def product(x, w):
    return x @ w


def clipping(ctx, x, w, grad):
    grad = grad.clamp(-1, 1)
    return grad @ w.T, x.T @ grad


@mutant(
    "04.clipped_product",
    "Forward is right, and backward meets two dtypes: the gradient in 16 bits, saved tensors in float32. Both methods "
    'need their decorator, with device_type="cpu" for tensors on the CPU: for "cuda" they do nothing here.',
)
def undecorated(x, w):
    return clipped(product, clipping, wrap=False)(x, w)


@mutant(
    "04.clipped_product",
    "cast_inputs=torch.float32 switches autocast off in forward: your product is float32, and slow on a GPU. Leave it "
    "out; it is for operations that need float32.",
)
def cast_to_float32(x, w):
    return clipped(product, clipping, cast_inputs=torch.float32)(x, w)


@mutant(
    "04.clipped_product",
    "The gradient is not clipped. Clamp it to -1 … 1 before the two products.",
)
def not_clipped(x, w):
    return clipped(product)(x, w)


@mutant(
    "04.clipped_product",
    "x and w were cast to bfloat16 by hand. Another region may use float16, and outside of a region nothing should be "
    "rounded: let autocast cast.",
)
def always_bfloat16(x, w):
    def forward(x, w):
        return x.bfloat16() @ w.bfloat16()

    def backward(ctx, x, w, grad):
        return clipping(ctx, x.bfloat16(), w.bfloat16(), grad)

    return clipped(forward, backward, wrap=False)(x, w)


@mutant(
    "04.clipped_product",
    "Your backward opens a bfloat16 region of its own. custom_bwd opens the one that forward ran in: perhaps float16, "
    "perhaps none.",
)
def backward_in_bfloat16(x, w):
    def backward(ctx, x, w, grad):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return clipping(ctx, x, w, grad)

    return clipped(product, backward, wrap=False)(x, w)


@mutant(
    "04.clipped_product",
    "w gets no gradient: backward must return one for each input of forward, in their order.",
)
def one_gradient(x, w):
    return clipped(product, lambda ctx, x, w, grad: (clipping(ctx, x, w, grad)[0], None))(x, w)


def registered(policies, device_type, low, choose):
    """register_casts with another choice of the dtype."""
    for name, policy in policies.items():
        torch.library.register_autocast(name, device_type, choose(policy, low))


@mutant(
    "04.register_casts",
    'Every operation was cast to the dtype of the region. Look at its policy: "float32" asks for float32.',
)
def all_to_low(policies, device_type, low):
    registered(policies, device_type, low, lambda policy, low: low)


@mutant(
    "04.register_casts",
    "Every operation was cast to float32. lower_precision asks for low.",
)
def all_to_float32(policies, device_type, low):
    registered(policies, device_type, low, lambda policy, low: torch.float32)


@mutant(
    "04.register_casts",
    "Your rules have no effect on CPU tensors: they are missing, or registered for another device. Pass on "
    "device_type.",
)
def for_another_device(policies, device_type, low):
    registered(policies, "cuda", low, lambda policy, low: low if policy == "lower_precision" else torch.float32)


@mutant(
    "04.register_casts",
    "float32 and lower_precision are swapped: the first one is the policy for what needs more digits.",
)
def swapped_policies(policies, device_type, low):
    registered(policies, device_type, low, lambda policy, low: torch.float32 if policy == "lower_precision" else low)


@mutant(
    "04.put_rows",
    "The dtypes still differ. An assignment through an index, and index_add_, want the values in the dtype of the "
    "buffer: values.to(buffer.dtype).",
)
def as_it_was(buffer, rows, values, add):
    if add:
        buffer.index_add_(0, rows, values)
    else:
        buffer[rows] = values


@mutant(
    "04.put_rows",
    "You converted the buffer. That makes a new tensor, and the caller's buffer never changes. Convert the values.",
)
def converts_the_buffer(buffer, rows, values, add):
    as_it_was(buffer.to(values.dtype), rows, values, add)


@mutant(
    "04.put_rows",
    "A row that occurs twice lost one of its values: buffer[rows] += … reads once and writes twice. Use index_add_.",
)
def adds_once(buffer, rows, values, add):
    values = values.to(buffer.dtype)
    buffer[rows] = buffer[rows] + values if add else values


@mutant(
    "04.put_rows",
    "float() fits a float32 buffer only. The buffer may be in 16 bits and the values float32: convert to buffer.dtype.",
)
def always_float(buffer, rows, values, add):
    as_it_was(buffer, rows, values.float(), add)


@mutant(
    "04.to_numpy",
    "numpy() knows no bfloat16, and refuses tensors that require a gradient. Detach, and convert bfloat16 to float32.",
)
def plain_numpy(x):
    return x.numpy()


@mutant(
    "04.to_numpy",
    "You went from bfloat16 to float16: large numbers became infinite. float32 holds every bfloat16 number.",
)
def through_float16(x):
    return (x.detach().half() if x.dtype == torch.bfloat16 else x.detach()).numpy()


@mutant(
    "04.to_numpy",
    "You convert everything to float32. float64 loses digits, and so do large integers. Only bfloat16 needs it.",
)
def everything_to_float32(x):
    return x.detach().float().numpy()


@mutant(
    "04.to_numpy",
    "bfloat16 works. A tensor that requires a gradient must be detached, whatever its dtype.",
)
def never_detached(x):
    return (x.detach().float() if x.dtype == torch.bfloat16 else x).numpy()


@mutant(
    "04.graph_layer",
    "The sparse product still runs in 16 bits. features.float() is not enough: addmm casts again. Switch the region "
    "off around it.",
)
def only_float_features(adjacency, features, weight):
    return torch.sparse.mm(adjacency, features.float()) @ weight


@mutant(
    "04.graph_layer",
    "You switched the region off and left the features as they came. They may be in 16 bits already: cast them to "
    "float32 inside.",
)
def features_as_they_came(adjacency, features, weight):
    with torch.autocast("cpu", enabled=False):
        spread = torch.sparse.mm(adjacency, features)
    return spread @ weight


@mutant(
    "04.graph_layer",
    "The island is too large: the dense product is in float32 too, and gains nothing from autocast. Leave it outside.",
)
def whole_layer_in_float32(adjacency, features, weight):
    with torch.autocast("cpu", enabled=False):
        return torch.sparse.mm(adjacency, features.float()) @ weight


@mutant(
    "04.graph_layer",
    "A dense adjacency runs, and autocast rounds it to 16 bits: edges that differ in the last digits become equal. "
    "And it needs memory for every pair of nodes.",
)
def dense_adjacency(adjacency, features, weight):
    return adjacency.to_dense() @ features @ weight


@mutant(
    "04.yes_no_loss",
    "binary_cross_entropy is banned in a region, in float32 too. Give the logits, without the sigmoid, to "
    "binary_cross_entropy_with_logits.",
)
def bce(logits, targets):
    return F.binary_cross_entropy(logits.float().sigmoid(), targets)


@mutant(
    "04.yes_no_loss",
    "On an island BCELoss runs, but the sigmoid is exactly 1 for large logits, in float32 too, and the logarithm is "
    "cut at -100. Use the logits themselves.",
)
def bce_on_an_island(logits, targets):
    with torch.autocast("cpu", enabled=False):
        return F.binary_cross_entropy(logits.float().sigmoid(), targets)


@mutant(
    "04.yes_no_loss",
    "You gave probabilities to a loss that wants logits: it applies the sigmoid itself. Leave yours out.",
)
def sigmoid_twice(logits, targets):
    return F.binary_cross_entropy_with_logits(logits.float().sigmoid(), targets)


@mutant(
    "04.yes_no_loss",
    "The logarithm of 0 is minus infinity, and 0 times infinity is NaN. The formula from the textbook needs "
    "binary_cross_entropy_with_logits to survive large logits.",
)
def by_hand(logits, targets):
    p = logits.float().sigmoid()
    return -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()


@mutant(
    "04.yes_no_loss",
    "With an eps in the logarithm the loss is finite and wrong: it cannot grow any more, and its gradient is 0 where "
    "the model is most wrong.",
)
def with_eps(logits, targets):
    p = logits.float().sigmoid()
    return -(targets * (p + 1e-6).log() + (1 - targets) * (1 - p + 1e-6).log()).mean()


def loop(model, optimizer, batches, inside=lambda: torch.autocast("cpu", dtype=torch.bfloat16), zero=True):
    """train with another region in each step."""
    losses = []
    for x, y in batches:
        if zero:
            optimizer.zero_grad()
        with inside():
            loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@mutant(
    "04.train",
    "The whole loop is still inside one region. It keeps the cast weights until it ends, so the model runs with its "
    "first weights for ever. Open a region in each step, around forward and loss.",
)
def one_region(model, optimizer, batches):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loop(model, optimizer, batches)


@mutant(
    "04.train",
    "Without a region the model runs in float32. It trains, but autocast was the point: open a region around forward "
    "and loss in each step.",
)
def no_region(model, optimizer, batches):
    return loop(model, optimizer, batches, inside=lambda: torch.autocast("cpu", enabled=False))


@mutant(
    "04.train",
    "The gradients of all steps add up: zero_grad is missing.",
)
def never_zeroed(model, optimizer, batches):
    return loop(model, optimizer, batches, zero=False)


@mutant(
    "04.train",
    "The model itself was converted to bfloat16. Autocast needs float32 weights: small updates are lost in 16 bits.",
)
def model_in_bfloat16(model, optimizer, batches):
    losses = []
    model.bfloat16()
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x.bfloat16()), y.bfloat16())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@mutant(
    "04.train",
    "The loss is computed outside of the region, from a bfloat16 prediction and a float32 target converted to it. Keep "
    "the loss inside: mse_loss is on the float32 list.",
)
def loss_in_bfloat16(model, optimizer, batches):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prediction = model(x)
        loss = F.mse_loss(prediction, y.bfloat16())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
