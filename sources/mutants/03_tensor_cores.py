"""Wrong answers to lab 03 that real people give, each with the message that the check shows."""

import math
import statistics

import torch

from ampedu.exercises import mutant

AMD_WITH_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")
CPU_WITH_BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


def native(
    device,
    cuda=lambda capability: capability >= (8, 0),
    rocm=lambda device: device["architecture"].startswith(AMD_WITH_BF16),
    cpu=lambda flags: not CPU_WITH_BF16.isdisjoint(flags),
):
    """native_bf16, with the three rules that mutants replace."""
    if device["backend"] == "cuda":
        return cuda(device["capability"])
    return rocm(device) if device["backend"] == "rocm" else cpu(device["flags"].split())


@mutant(
    "03.native_bf16",
    "You believed is_bf16_supported. It answers whether bf16 runs, and on an old GPU it runs by way of float32. "
    "Ask for the capability (NVIDIA) or the architecture (AMD) instead.",
)
def believes_torch(device):
    return device["is_bf16_supported"] or native(device) if device["backend"] != "cpu" else native(device)


@mutant(
    "03.native_bf16",
    "Tensor Cores alone are not enough. Those of Volta and Turing, 7.0 to 7.5, multiply fp16; bf16 came with "
    "capability 8.0. A T4 emulates it.",
)
def tensor_cores_suffice(device):
    return native(device, cuda=lambda capability: capability >= (7, 0))


@mutant(
    "03.native_bf16",
    "You used NVIDIA's rule for AMD. There the pair is the number of the architecture: (10, 3) is an RX 6800, and "
    "(9, 0) is an MI250X and an old MI50 alike. Look at the name of the architecture.",
)
def capability_for_amd(device):
    return native(device, rocm=lambda device: device["capability"] >= (8, 0))


@mutant(
    "03.native_bf16",
    "You say False for every AMD GPU. The name goes on after a colon, and the table lists beginnings: compare with "
    "startswith, not with == or in.",
)
def exact_architecture(device):
    return native(device, rocm=lambda device: device["architecture"] in AMD_WITH_BF16)


@mutant(
    "03.native_bf16",
    "The A100 came out as False. Its capability is exactly (8, 0), and that is where bf16 begins: compare with >=.",
)
def above_eight(device):
    return native(device, cuda=lambda capability: capability > (8, 0))


@mutant(
    "03.native_bf16",
    "avx512f is not avx512_bf16. Skylake and Ice Lake have the wide registers and no instruction for bf16.",
)
def wide_registers_suffice(device):
    return native(device, cpu=lambda flags: "avx512f" in flags or not CPU_WITH_BF16.isdisjoint(flags))


@mutant(
    "03.native_bf16",
    "You say False for every CPU. Some multiply bf16 in hardware, and this lab may be running on one: look for the "
    "flags in the table.",
)
def never_a_cpu(device):
    return native(device, cpu=lambda flags: False)


def nearest(printed, product):
    return min(printed, key=lambda figure: abs(math.log(figure / product)))


@mutant(
    "03.dense_peak",
    "You took the largest figure: that is the one with the asterisk, or one for smaller numbers. If you computed it, "
    "look at the unit: GHz give 10⁹ operations per second, datasheets print 10¹².",
)
def largest_figure(printed, sms, cores, fmas, ghz):
    return max(printed)


@mutant(
    "03.dense_peak",
    "A fused multiply-add is two operations, one multiplication and one addition. Your peak is half of the right one, "
    "so you took the figure of the next wider format.",
)
def fma_is_one(printed, sms, cores, fmas, ghz):
    return nearest(printed, sms * cores * fmas * ghz / 1000)


@mutant(
    "03.dense_peak",
    "You counted one Tensor Core for each SM. Every SM has several: multiply by cores too.",
)
def one_core_per_sm(printed, sms, cores, fmas, ghz):
    return nearest(printed, 2 * sms * fmas * ghz / 1000)


@mutant(
    "03.dense_peak",
    "You returned the product itself. It is what the units can do; return the printed figure that is nearest to it.",
)
def product_itself(printed, sms, cores, fmas, ghz):
    return 2 * sms * cores * fmas * ghz / 1000


@mutant(
    "03.dense_peak",
    "You doubled the dense peak. That is the figure with sparsity: it counts multiplications by zeros that are "
    "skipped, and needs weights of which half are zero in a fixed pattern.",
)
def with_sparsity(printed, sms, cores, fmas, ghz):
    return nearest(printed, 4 * sms * cores * fmas * ghz / 1000)


def tile(a, b, c, accumulate, rounds_to=None, product=lambda x: x, start=True, end=None):
    """tensor_core, with the steps that mutants replace: the rounding of a sum and of a product, where C comes in."""
    rounds_to = rounds_to or accumulate
    total = (c if start else torch.zeros_like(c)).to(rounds_to)
    for k in range(a.shape[1]):
        exact = a[:, k, None].double() * b[k].double()
        total = (total.double() + product(exact)).to(rounds_to)
    if end:
        total = end(total)
    return total.to(accumulate)


@mutant(
    "03.tensor_core",
    "Your products are rounded to float16 before you add them. The multiplier keeps all their bits: widen a and b "
    "before you multiply, not after.",
)
def rounds_products(a, b, c, accumulate):
    return tile(a, b, c, accumulate, product=lambda x: x.half().double())


@mutant(
    "03.tensor_core",
    "You add in float16 whatever accumulate says. The accumulator is the wide register that makes 16-bit inputs "
    "usable: keep the sum in its dtype.",
)
def always_adds_in_half(a, b, c, accumulate):
    return tile(a, b, c, accumulate, rounds_to=torch.float16)


@mutant(
    "03.tensor_core",
    "You added in float32 and rounded once at the end. A float16 accumulator has no wider place to wait in: round the "
    "sum after every addition.",
)
def rounds_once(a, b, c, accumulate):
    return tile(a, b, c, accumulate, rounds_to=torch.float64)


@mutant(
    "03.tensor_core",
    "You added C last. The accumulator starts with C: small products meet a large sum from the first step on, and in "
    "float16 that costs bits.",
)
def c_comes_last(a, b, c, accumulate):
    return tile(a, b, c, accumulate, start=False, end=lambda total: total + c.to(total.dtype))


@mutant("03.tensor_core", "C is missing. The unit computes A × B + C, so that long sums can be cut into tiles.")
def c_forgotten(a, b, c, accumulate):
    return tile(a, b, c, accumulate, start=False)


@mutant(
    "03.tensor_core",
    "D came out as float16. The inputs are 16-bit, the accumulator need not be: return its dtype. (A library may "
    "round D once more when it writes it to memory. That is another step.)",
)
def output_like_the_inputs(a, b, c, accumulate):
    return tile(a, b, c, accumulate).half()


@mutant(
    "03.tensor_core",
    "You left it to a @ b. That product of float16 tensors comes back rounded to float16, before C is added. The sum "
    "has to stay in the accumulator, C included, until it is complete.",
)
def torch_matmul(a, b, c, accumulate):
    return (a.double() @ b.double()).half() + c


def cut(x, add=0x1000):
    return ((x.view(torch.int32) + add) & -0x2000).view(torch.float32)


def product(a, b):
    return a.double() @ b.double()


@mutant(
    "03.tf32_matmul",
    "That is the product of the float32 numbers: nothing was rounded. TF32 drops 13 of the 23 mantissa bits of a and "
    "b before it multiplies.",
)
def nothing_rounded(a, b):
    return product(a, b)


@mutant(
    "03.tf32_matmul",
    "You cut the 13 bits off, so that every factor moves toward zero. Round to the nearest number: add half of the "
    "gap to the bits before you cut.",
)
def truncated(a, b):
    return product(cut(a, 0), cut(b, 0))


@mutant(
    "03.tf32_matmul",
    "You went through float16. It has TF32's 10 mantissa bits but not its 8 exponent bits: large numbers became "
    "infinity, small ones lost bits. The range must stay that of float32.",
)
def through_half(a, b):
    return product(a.half(), b.half())


@mutant(
    "03.tf32_matmul",
    "You went through bfloat16, which keeps 7 mantissa bits. TF32 has the same exponent bits and keeps 10.",
)
def through_bfloat16(a, b):
    return product(a.bfloat16(), b.bfloat16())


@mutant(
    "03.tf32_matmul",
    "You rounded the result. TF32 rounds what goes in; products and sums keep float32's precision or more, and the "
    "result comes back with all its bits.",
)
def rounds_the_result(a, b):
    return cut(product(a, b).float()).double()


@mutant("03.tf32_matmul", "Only one of the two factors was rounded. Both enter the unit as TF32.")
def one_factor_only(a, b):
    return product(cut(a), b)


def work(op, shapes, size, stride=1, padding=0, out=None, fma=2, batch=True, flip=False, write=True):
    """flops_bytes, with the parts that mutants replace."""
    first, last = shapes[0], shapes[-1]
    if op in ("relu", "add"):
        made = math.prod(first)
        flops = made
    elif op == "conv2d":
        height, width = ((x + 2 * padding - k) // stride + 1 for x, k in zip(first[2:], last[2:], strict=True))
        made = first[0] * last[0] * (math.prod(first[2:]) if out else height * width)
        flops = fma * made * math.prod(last[1:])
    else:
        columns = last[0] if (op == "linear") != flip else last[-1]
        rows = math.prod(first[:-1]) if batch else first[-2] if len(first) > 1 else 1
        flops = fma * rows * columns * first[-1]
        made = math.prod(first[:-1]) * (last[0] if op == "linear" else last[-1])
    moved = sum(math.prod(shape) for shape in shapes) + (made if write else 0)
    return flops, moved * size


@mutant(
    "03.flops_bytes",
    "Your products cost half of what they should. A multiply-add is two operations; peaks in datasheets are counted "
    "that way too.",
)
def one_for_a_multiply_add(op, shapes, size, stride=1, padding=0):
    return work(op, shapes, size, stride, padding, fma=1)


@mutant(
    "03.flops_bytes",
    "The operations are right. The bytes lack the output: it has to be written to memory, and every element of it "
    "costs as much as one that is read.",
)
def output_not_written(op, shapes, size, stride=1, padding=0):
    return work(op, shapes, size, stride, padding, write=False)


@mutant(
    "03.flops_bytes",
    "You counted elements. Memory moves bytes: multiply by size. That factor is what a 16-bit format saves.",
)
def elements_for_bytes(op, shapes, size, stride=1, padding=0):
    return work(op, shapes, 1, stride, padding)


@mutant(
    "03.flops_bytes",
    "Your convolution has as many output positions as the image has pixels. That holds for stride 1 with fitting "
    "padding only: the size of the output is (H + 2 · padding − h) // stride + 1.",
)
def image_for_output(op, shapes, size, stride=1, padding=0):
    return work(op, shapes, size, stride, padding, out=True)


@mutant(
    "03.flops_bytes",
    "You counted one product of the batch. All dimensions in front of the last one of the left factor are rows or "
    "copies, and each costs its own operations.",
)
def batch_forgotten(op, shapes, size, stride=1, padding=0):
    return work(op, shapes, size, stride, padding, batch=False)


@mutant(
    "03.flops_bytes",
    "Your bytes count a read for every multiplication. A chip reads an element once and uses it many times from its "
    "own memory: that is why a large product can be compute-bound at all.",
)
def read_every_time(op, shapes, size, stride=1, padding=0):
    flops, moved = work(op, shapes, size, stride, padding)
    return flops, moved if op in ("relu", "add") else flops * size


@mutant(
    "03.flops_bytes",
    "Your linear layer has the sizes of its weight swapped. torch stores it as (outputs, inputs), and multiplies by "
    "its transpose.",
)
def weight_not_transposed(op, shapes, size, stride=1, padding=0):
    if op != "linear":
        return work(op, shapes, size, stride, padding)
    return work(op, shapes, size, flip=True)


def wall(flops, moved, ridge, upside_down=False, swapped=False):
    intensity = flops / moved
    name = "compute" if (intensity > ridge) != swapped else "memory"
    return (1 / intensity if upside_down else intensity), name


@mutant(
    "03.bound",
    "Your intensity is bytes per operation. It is the other way round: how many operations each byte pays for.",
)
def bytes_per_flop(flops, moved, peak, bandwidth):
    return wall(flops, moved, peak * 1000 / bandwidth, upside_down=True)


@mutant(
    "03.bound",
    "The units do not match. peak is in 10¹² operations per second, bandwidth in 10⁹ bytes per second: your ridge is "
    "1000 times too low, and nearly everything looks compute-bound.",
)
def units_ignored(flops, moved, peak, bandwidth):
    return wall(flops, moved, peak / bandwidth)


@mutant(
    "03.bound",
    "The intensity is right, the names are swapped. Many operations for each byte keep the arithmetic units busy: "
    "above the ridge the limit is compute.",
)
def names_swapped(flops, moved, peak, bandwidth):
    return wall(flops, moved, peak * 1000 / bandwidth, swapped=True)


@mutant(
    "03.bound",
    "You compared the intensity with the peak. Operations per byte can only be compared with operations per byte: "
    "peak divided by bandwidth.",
)
def peak_for_ridge(flops, moved, peak, bandwidth):
    return wall(flops, moved, peak * 1e12)


def gained(flops, elements, cast, machine, together=max, calls=True, casts=True, narrow=2, upside_down=False):
    """predicted_gain, with the parts that mutants replace."""
    overhead = machine["overhead"] * 1e-6 if calls else 0.0

    def seconds(work, moved):
        return together((work, moved / (machine["bandwidth"] * 1e9), overhead))

    slow = seconds(flops / (machine["fp32"] * 1e12), 4 * elements)
    fast = seconds(flops / (machine["16-bit"] * 1e12), narrow * elements)
    if cast and casts:
        fast += seconds(0.0, 6 * cast)
    gain = fast / slow if upside_down else slow / fast
    return gain, "gain" if gain >= 1.5 else "no gain"


@mutant(
    "03.predicted_gain",
    "You added the three times. A chip does all of it at once: the longest one decides, and the others hide behind it.",
)
def adds_up(flops, elements, cast, machine):
    return gained(flops, elements, cast, machine, together=sum)


@mutant(
    "03.predicted_gain",
    "You divided the two peaks. That is the gain of a layer that only computes; one that waits for memory, or for the "
    "next call, gains less or nothing.",
)
def peaks_only(flops, elements, cast, machine):
    gain = machine["16-bit"] / machine["fp32"]
    return gain, "gain" if gain >= 1.5 else "no gain"


@mutant(
    "03.predicted_gain",
    "The overhead of a call is missing. It is the same in every format, so a layer that is shorter than it gains "
    "nothing.",
)
def calls_are_free(flops, elements, cast, machine):
    return gained(flops, elements, cast, machine, calls=False)


@mutant(
    "03.predicted_gain",
    "You left out the cast. Before the 16-bit layer can run, its float32 inputs are read (4 bytes) and written again "
    "(2 bytes), in a call of its own. That can cost more than the layer saves.",
)
def casts_are_free(flops, elements, cast, machine):
    return gained(flops, elements, cast, machine, casts=False)


@mutant(
    "03.predicted_gain",
    "You kept 4 bytes for an element in the 16-bit layer. Half of the bytes is all that a memory-bound layer can gain.",
)
def bytes_not_halved(flops, elements, cast, machine):
    return gained(flops, elements, cast, machine, narrow=4)


@mutant(
    "03.predicted_gain",
    "Your ratio is upside down: time in float32 divided by time in 16-bit, so that 2 means twice as fast.",
)
def ratio_upside_down(flops, elements, cast, machine):
    return gained(flops, elements, cast, machine, upside_down=True)


BITS = {"fp64": 64, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}


def to_multiple(size, multiple):
    return -(-size // multiple) * multiple


@mutant(
    "03.pad",
    "You also pad a size that fits. If it is a multiple already, there is nothing to add; -(-size // multiple) rounds "
    "up without that mistake.",
)
def always_adds(size, dtype, line):
    multiple = line * 8 // BITS[dtype]
    return (size // multiple + 1) * multiple


@mutant(
    "03.pad",
    "You rounded down, so that the last entries of the vocabulary have no row any more. Padding adds: round up.",
)
def rounds_down(size, dtype, line):
    multiple = line * 8 // BITS[dtype]
    return size // multiple * multiple


@mutant(
    "03.pad",
    "8 is right for 16-bit formats and a line of 16 bytes. How many elements fill the line depends on both.",
)
def eight_for_all(size, dtype, line):
    return to_multiple(size, 8)


@mutant(
    "03.pad",
    "You took the line for a number of elements. It is in bytes: how many elements of this dtype fit into it?",
)
def bytes_for_elements(size, dtype, line):
    return to_multiple(size, line)


@mutant(
    "03.pad",
    "TF32 rounds inside the unit only. In memory its numbers are float32, 4 bytes each, so fewer of them fill a line.",
)
def tf32_in_two_bytes(size, dtype, line):
    return to_multiple(size, line * 8 // {**BITS, "tf32": 16}[dtype])


@mutant(
    "03.pad",
    "A power of two is always aligned, and far too large: 50257 would become 65536, and almost a quarter of your last "
    "layer would compute padding. The next multiple is enough.",
)
def next_power_of_two(size, dtype, line):
    return 1 << (size - 1).bit_length()


def quantized(m, n, sms, tile, tiles=None, rounds=lambda tiles, sms: -(-tiles // sms), idle=True):
    """waves, with the parts that mutants replace."""
    tiles = -(-m // tile[0]) * -(-n // tile[1]) if tiles is None else tiles
    count = rounds(tiles, sms)
    slots = count * sms if idle else tiles
    return tiles, count, m * n / (slots * tile[0] * tile[1]) if slots else 0.0


@mutant(
    "03.waves",
    "You divided areas. Tiles lie in a grid: count the rows of tiles and the columns of tiles, round each up, and "
    "multiply.",
)
def by_area(m, n, sms, tile=(256, 128)):
    return quantized(m, n, sms, tile, tiles=-(-m * n // (tile[0] * tile[1])))


@mutant(
    "03.waves",
    "You rounded down. The ragged edge of the result needs tiles too, whole ones.",
)
def edge_forgotten(m, n, sms, tile=(256, 128)):
    return quantized(m, n, sms, tile, tiles=(m // tile[0]) * (n // tile[1]))


@mutant(
    "03.waves",
    "Tiles and waves are right. In your share the idle SMs of the last wave are missing: they wait, and what they "
    "could have computed is lost. Divide by all places, waves × sms.",
)
def idle_sms_forgotten(m, n, sms, tile=(256, 128)):
    return quantized(m, n, sms, tile, idle=False)


@mutant(
    "03.waves",
    "You have one wave too many when the last one is full. tiles // sms + 1 rounds up, except for multiples; "
    "-(-tiles // sms) always does.",
)
def one_wave_too_many(m, n, sms, tile=(256, 128)):
    return quantized(m, n, sms, tile, rounds=lambda tiles, sms: tiles // sms + 1)


@mutant(
    "03.waves",
    "The tile lies on its side: its first size counts rows of the result (m), its second one columns (n).",
)
def tile_on_its_side(m, n, sms, tile=(256, 128)):
    return quantized(m, n, sms, tile[::-1])


def timed(run, synchronize, clock, warmup, repeats, settle=True, before=True, after=True, center=statistics.median):
    """time_call, with the steps that mutants leave out: waiting after the warm-up, before, and after a call."""
    for _ in range(warmup):
        run()
    if settle:
        synchronize()
    samples = []
    for _ in range(repeats):
        if before:
            synchronize()
        start = clock()
        run()
        if after:
            synchronize()
        samples.append(clock() - start)
    return center(samples), min(samples), max(samples)


@mutant(
    "03.time_call",
    "You never wait for the device. run only hands the work over, so you timed the handing over: a few ticks, however "
    "long the work takes. Synchronize before each reading of the clock.",
)
def never_waits(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, warmup, repeats, settle=False, before=False, after=False)


@mutant(
    "03.time_call",
    "You wait before a call but not after it. The second reading comes while the device still works, so the work "
    "itself is not in your time.",
)
def does_not_wait_after(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, warmup, repeats, after=False)


@mutant(
    "03.time_call",
    "You wait after a call but not before the first one. The warm-up is still running when you start the clock, so "
    "your slowest time contains it.",
)
def does_not_wait_before(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, warmup, repeats, settle=False, before=False)


@mutant(
    "03.time_call",
    "There is no warm-up. The first calls pay for compiling, allocating and choosing a kernel; they must run before "
    "the first sample and count in none.",
)
def no_warmup(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, 0, repeats)


@mutant(
    "03.time_call",
    "The calls of the warm-up are among your samples: the slowest one is the very first call. Run them before you "
    "begin to measure, and drop their times.",
)
def warmup_counted(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, 0, warmup + repeats)


@mutant(
    "03.time_call",
    "You returned the mean. One disturbed sample, ten times as long, moves it far away from what a call usually "
    "takes. The median stays.",
)
def mean(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, warmup, repeats, center=statistics.mean)


@mutant(
    "03.time_call",
    "You returned the fastest time as the typical one. It tells what the machine can do when nothing is in the way; "
    "asked for first is the median.",
)
def fastest_first(run, synchronize, clock, warmup, repeats):
    return timed(run, synchronize, clock, warmup, repeats, center=min)


@mutant(
    "03.time_call",
    "You timed all repeats as one block and divided. That is a mean: it hides a disturbed call inside, and there is "
    "no fastest and no slowest. Take a time for each call.",
)
def one_block(run, synchronize, clock, warmup, repeats):
    for _ in range(warmup):
        run()
    synchronize()
    start = clock()
    for _ in range(repeats):
        run()
    synchronize()
    each = (clock() - start) / repeats
    return each, each, each


@mutant(
    "03.time_call",
    "Your times are 1000 times too large: milliseconds. clock() gives seconds, and seconds are wanted.",
)
def milliseconds(run, synchronize, clock, warmup, repeats):
    return tuple(1000 * time for time in timed(run, synchronize, clock, warmup, repeats))
