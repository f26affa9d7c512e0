"""Which methods stack under what presets use: every cell works, or has its sentence.

Run as a program it prints the table of docs/performance.md.
"""

RAGGED, PRESET, ADAM = "clients of unequal size", "what presets use", "batch norm, AdamW"

SETTINGS = {
    RAGGED: ("partition=quantity_skew",),
    PRESET: (
        "model.norm=bn",
        "partition=quantity_skew",
        "optimizer.momentum=0.9",
        "optimizer.weight_decay=0.001",
        "federation.opt_state=keep",
        "trainer.gradient_clip_val=0.5",
        "trainer.channels_last=true",
    ),
    ADAM: ("model.norm=bn", "optimizer=adamw", "partition=quantity_skew"),
}

METHODS = (
    *("local", "fedavg", "fedprox", "scaffold", "fednova", "feddyn", "fedavgm", "fedadam", "fed2", "psi_net"),
    *("fedfusion_conv", "fedfusion_multi", "fedfusion_single", "fedhenn", "fedhenn_hetero", "fedma"),
    *(
        "ot_fusion",
        "moon",
        "fedproto",
        "fedtgp",
        "fedgh",
        "fedrod",
        "fedpac",
        "fd",
        "fedmd",
        "feddf",
        "heterofl",
    ),
    *("fedrolex", "fedrep", "lg_fedavg", "fedbabu", "ditto", "apfl", "pfedme", "per_fedavg", "fedala"),
)

BESIDE = {
    "fedrep": ("algorithm.client.head_epochs=1", "federation.local_epochs=2"),
    "fedpac": ("federation.local_epochs=2",),
    "heterofl": ("federation.num_clients=8",),
    "fedrolex": ("federation.num_clients=8",),
    "fedma": ("federation.num_rounds=4",),
}
"""What a method needs to be seen at all: an epoch for the body, two clients of a level, a round for each layer."""

RESETS = ("scaffold", "fednova", "fedbabu", "fedrolex", "fedrep", "fedpac")
"""Methods that refuse ``federation.opt_state=keep``, or its stacked form; they are tried without it."""


def words(method: str, setting: str) -> tuple[str, ...]:
    """Give the command line of a cell."""
    chosen = [w for w in SETTINGS[setting] if not (method in RESETS and w == "federation.opt_state=keep")]
    return (f"algorithm={method}", *chosen, "federation.num_rounds=2", *BESIDE.get(method, ()))


_SHARED = "its term passes over the shared inputs, which no stack of clients holds"
_WIDTHS = "its clients have networks of unequal widths"
_CHAIN = "model must be a chain of plain convolutions and linear layers"
_HALVES = "it passes halves of batches, and stacked dropout and batch norm are for whole ones (model)"
_INNER = "its inner steps move the statistics of batch norm, and a stacked step moves them once (model)"
_SUMS = "optimizer must be SGD, alike for all parameters"

REFUSED = {
    **{(method, setting): _SHARED for method in ("fedhenn", "fedhenn_hetero") for setting in SETTINGS},
    ("fedma", RAGGED): _WIDTHS,
    **{(method, setting): _CHAIN for method in ("fedma", "ot_fusion") for setting in (PRESET, ADAM)},
    **{(method, ADAM): _SUMS for method in ("scaffold", "fednova")},
    **{("pfedme", setting): _INNER for setting in (PRESET, ADAM)},
    **{("per_fedavg", setting): _HALVES for setting in (PRESET, ADAM)},
}
"""The part of the sentence by which a cell is refused. Those that begin with a key are under every executor."""


def table() -> list[str]:
    """Give the lines of the table."""
    notes = list(dict.fromkeys(REFUSED.values()))
    lines = ["| `algorithm=` | " + " | ".join(SETTINGS) + " |", "|---|---|---|---|"]
    for method in METHODS:
        cells = []
        for setting in SETTINGS:
            note = REFUSED.get((method, setting))
            resets = setting == PRESET and method in RESETS
            works = "stacks, `opt_state=reset`" if resets else "stacks"
            cells.append(works if note is None else f"no ({notes.index(note) + 1})")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return [*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, start=1))]


if __name__ == "__main__":
    print("\n".join(table()))
