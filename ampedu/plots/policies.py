"""Autocast policies of operations on several devices as a grid: where two devices differ, a row changes its look."""

from matplotlib.patches import Rectangle

from ampedu.plots.drawing import PALETTE, Picture, new_figure, styled

# Color, hatching and words say the same.
LOOKS = {
    "lower_precision": ("16 bits", {"facecolor": PALETTE["orange"]}),
    "float32": ("float32", {"facecolor": PALETTE["sky"]}),
    "float32_set_dtype": ("float32", {"facecolor": PALETTE["sky"]}),
    "promote_widest": ("widest", {"facecolor": "white", "hatch": "//", "edgecolor": PALETTE["green"]}),
    "banned": ("raises", {"facecolor": PALETTE["purple"], "hatch": "xx", "edgecolor": "white"}),
    None: ("on no list", {"facecolor": "white"}),
}
TALL = 0.27  # inches of a row


@styled
def policy_grid(policies, title: str = "What autocast does with an operation") -> Picture:
    """Draw one row per operation and one column per device, colored and labeled by policy.

    policies: {operation: {device: Policy, its name, or None where the operation is on no list}}; every row has the
    same devices. ValueError: no rows, or rows with different devices.
    """
    rows = {name: dict(row) for name, row in policies.items()}
    devices = list(next(iter(rows.values()), {}))
    if not devices or any(list(row) != devices for row in rows.values()):
        raise ValueError("give at least one operation, and the same devices, in the same order, for each of them")
    figure = new_figure(height=0.85 + TALL * len(rows), width=1.9 + 1.4 * len(devices))
    axes = figure.add_subplot()
    for y, row in enumerate(rows.values()):
        for x, policy in enumerate(row.values()):
            word, look = LOOKS[policy]
            axes.add_patch(Rectangle((x, y), 1, 1, **{"edgecolor": "white", **look}))
            axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="white", linewidth=2))
            color = "0.35" if policy is None else "black"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if "hatch" in look else None
            axes.text(x + 0.5, y + 0.52, word, ha="center", va="center", size=9, color=color, bbox=box)
    axes.set(xlim=(0, len(devices)), ylim=(len(rows), 0), title=title)
    axes.set_xticks([x + 0.5 for x in range(len(devices))], devices, weight="bold")
    axes.set_yticks([y + 0.5 for y in range(len(rows))], rows)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return Picture(figure, f"{title}. {' '.join(_told(name, row) for name, row in rows.items())}")


def _told(name: str, row: dict) -> str:
    words = {device: LOOKS[policy][0] for device, policy in row.items()}
    if len(set(words.values())) == 1:
        return f"{name}: {next(iter(words.values()))} on all."
    return f"{name}: " + ", ".join(f"{word} on {device}" for device, word in words.items()) + "."
