"""The explorers as anywidgets: the JavaScript of the static pages, with a kernel that can read and set their state."""

import anywidget
import traitlets

from ampedu import static


class Explorer(anywidget.AnyWidget):
    """An explorer whose repr shows its state; anywidget's own shows an address."""

    shows: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.shows)})"


class BitExplorer(Explorer):
    """Traits: see ``static/bit_explorer.js``; all of them follow what the learner does."""

    _esm = static.module("bit_explorer")
    shows = ("format", "value", "code", "compare")
    format = traitlets.Unicode("fp16").tag(sync=True)
    value = traitlets.Unicode("0.1").tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)
    compare = traitlets.List(traitlets.Unicode()).tag(sync=True)


class RangeExplorer(Explorer):
    """Traits: see ``static/range_explorer.js``; ``scale_log2`` follows the slider."""

    _esm = static.module("range_explorer")
    shows = ("formats", "scale_log2", "label")
    counts = traitlets.Dict().tag(sync=True)
    zeros = traitlets.Int(0).tag(sync=True)
    formats = traitlets.List(traitlets.Unicode()).tag(sync=True)
    scale_log2 = traitlets.Int(0).tag(sync=True)
    label = traitlets.Unicode("gradients").tag(sync=True)


class ScalerSimulator(Explorer):
    """Traits: see ``static/scaler_simulator.js``; all of them follow what the learner does."""

    _esm = static.module("scaler_simulator")
    shows = ("pattern", "scale", "growth_interval")
    pattern = traitlets.Unicode("").tag(sync=True)
    scale = traitlets.Float(65536.0).tag(sync=True)
    growth_tracker = traitlets.Int(0).tag(sync=True)
    growth_factor = traitlets.Float(2.0).tag(sync=True)
    backoff_factor = traitlets.Float(0.5).tag(sync=True)
    growth_interval = traitlets.Int(2000).tag(sync=True)


CLASSES = {"bit_explorer": BitExplorer, "range_explorer": RangeExplorer, "scaler_simulator": ScalerSimulator}
