"""The machine, and how fast it could be at best."""

import platform
from collections.abc import Iterator
from functools import partial

import torch

from fedfeat.models.cnn import pfl_cnn
from fedfeat.models.flops import training_flops
from fedfeat.runs.provenance import versions
from gpu.measuring import repeated, step_of, use_tf32
from gpu.parts import Case, Options, Row
from gpu.running import num_cores
from gpu.workload import FLOPS_1500_ROUNDS

PRODUCTS = {"fp32": (torch.float32, False), "tf32": (torch.float32, True), "bf16": (torch.bfloat16, False)}


def cases(options: Options) -> Iterator[Case]:
    """Yield facts, then measured rates."""
    yield Case("machine", partial(facts, options))
    yield Case(
        "versions", lambda: {"value": ", ".join(f"{name} {text}" for name, text in versions().items())}
    )
    yield Case("work of W4", work)
    for name in PRODUCTS:
        yield Case(f"products, {name}", partial(products, options, name))
    yield Case("copies", partial(copies, options))
    yield Case("launches", partial(launches, options))


def facts(options: Options) -> Row:
    """Name what it runs on, and the commit."""
    found = [platform.machine(), f"{num_cores()} cores"]
    if options.device == "cuda":
        card = torch.cuda.get_device_properties(0)
        found += [
            f"{torch.cuda.device_count()} x {card.name}", f"{card.total_memory / 2**30:.0f} GiB",
            f"{card.multi_processor_count} multiprocessors", f"CUDA {torch.version.cuda}",
            f"cuDNN {torch.backends.cudnn.version()}",
        ]  # fmt: skip
    return {"value": ", ".join([*found, f"commit {options.kind()['commit'] or 'unknown'}"])}


def work() -> Row:
    """Count the operations of 1,500 rounds and say what others derived from them."""
    counted = 1500 * 50 * 50 * training_flops(pfl_cnn((3, 32, 32), 10))
    text = f"{counted / 1e15:.3f} PFLOP counted (.38 by hand): 13 s at 30 TFLOP/s, 6 s at 60"
    return {"value": text}


def products(options: Options, name: str) -> Row:
    """Multiply square matrices."""
    dtype, tf32 = PRODUCTS[name]
    use_tf32(tf32, tf32)
    size = 8192 if options.device == "cuda" else 256
    a, b = (torch.randn(size, size, device=options.device, dtype=dtype) for _ in range(2))
    step = step_of(options.device, lambda: a @ b)
    step()
    seconds = min(repeated(step, 1.0))
    rate = 2 * size**3 / seconds
    return {"value": f"{rate / 1e12:.4g} TFLOP/s", "floor of W4, s": FLOPS_1500_ROUNDS / rate}


def copies(options: Options) -> Row:
    """Copy from memory to memory of the device."""
    count = 2**29 if options.device == "cuda" else 2**22
    a = torch.zeros(count, device=options.device)
    b = torch.empty_like(a)
    step = step_of(options.device, lambda: b.copy_(a))
    step()
    rate = 2 * a.nbytes / min(repeated(step, 1.0))
    # SGD reads weights and gradients and writes weights, once a step of 50 clients.
    traffic = 7500 * 3 * 50 * 1_626_442 * 4
    return {"value": f"{rate / 1e12:.4g} TB/s", "floor of W4, s": traffic / rate}


def launches(options: Options) -> Row:
    """Add to a single number again and again."""
    x = torch.zeros(1, device=options.device)

    def many() -> None:
        for _ in range(1000):
            x.add_(1)

    step = step_of(options.device, many)
    step()
    return {"value": f"{min(repeated(step, 0.5)) * 1e3:.3g} µs each"}
