"""W4's network by hand on stacked weights: K clients at once, images (K, B, C, H, W)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fedfeat.models.cnn import pfl_cnn

Conv = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Images (K, B, C, H, W), filters (K, O, C, h, w) and biases (K, O) to (K, B, O, H', W')."""
Step = Callable[[], object]


def grouped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """One convolution whose groups are the clients."""
    # From one such layer to the next these are views.
    channels = x.transpose(0, 1).flatten(1, 2)
    y = functional.conv2d(channels, w.flatten(0, 1), b.flatten(), groups=len(w))
    return y.unflatten(1, w.shape[:2]).transpose(0, 1)


def grouped_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The same in the channels-last layout."""
    channels = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    filters = w.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    y = functional.conv2d(channels, filters, b.flatten(), groups=len(w))
    return y.unflatten(1, w.shape[:2]).transpose(0, 1)


def bmm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Unfolded images, and one product for each client."""
    windows = _windows(x, w)
    columns = windows.permute(0, 2, 5, 6, 1, 3, 4).flatten(1, 3).flatten(2)  # (K, C h w, B L)
    y = torch.baddbmm(b[:, :, None], w.flatten(2), columns)
    return y.unflatten(2, (x.shape[1], *windows.shape[3:5])).transpose(1, 2)


def bmm_each(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Unfolded images, and one product for each image."""
    windows = _windows(x, w)
    columns = windows.permute(0, 1, 2, 5, 6, 3, 4).flatten(2, 4).flatten(3)  # (K, B, C h w, L)
    y = w.flatten(2)[:, None] @ columns + b[:, None, :, None]
    return y.unflatten(3, windows.shape[3:5])


def _windows(x: Tensor, w: Tensor) -> Tensor:
    """Give what each filter sees, (K, B, C, H', W', h, w), a view; `nn.functional.unfold` starts a kernel an image."""
    return x.unfold(3, w.shape[3], 1).unfold(4, w.shape[4], 1)


def loop(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """One convolution after the other."""
    return torch.stack([functional.conv2d(*parts) for parts in zip(x, w, b, strict=True)])


FORMS: dict[str, Conv] = {
    "grouped": grouped, "grouped, channels-last": grouped_last, "bmm": bmm, "bmm each": bmm_each, "loop": loop,
}  # fmt: skip


def forward(weights: dict[str, Tensor], x: Tensor, convs: tuple[Conv, Conv]) -> Tensor:
    """Give logits (K, B, classes)."""
    for number, conv in enumerate(convs, start=1):
        w, b = (weights[f"encoder.conv{number}.conv.{kind}"] for kind in ("weight", "bias"))
        x = conv(x, w, b).relu()
    x = _pooled(x).flatten(2)
    for number in (1, 2):
        w, b = (weights[f"head.fc{number}.linear.{kind}"] for kind in ("weight", "bias"))
        x = torch.baddbmm(b[:, None], x, w.mT)
        x = x.relu() if number == 1 else x
    return x


def _pooled(x: Tensor) -> Tensor:
    if not x.is_contiguous():  # of a grouped convolution
        return _pooled_images(x.transpose(0, 1)).transpose(0, 1)
    return _pooled_images(x)


def _pooled_images(x: Tensor) -> Tensor:
    return functional.max_pool2d(x.flatten(0, 1), 2).unflatten(0, x.shape[:2])


class StackedStep:
    """One step of SGD of K clients, each on a batch of its own.

    Args:
        count: K.
        batch: Images of each client.
        device: Where it runs.
        convs: How the first and the second convolution are computed.
        bf16: Whether under autocast to bfloat16.
        lr: Learning rate.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        device: str,
        convs: tuple[Conv, Conv],
        bf16: bool = False,
        lr: float = 0.1,
    ) -> None:
        torch.manual_seed(0)
        network = pfl_cnn((3, 32, 32), 10, input_dropout=0.0, dropout=0.0)
        self.weights = {
            name: tensor.detach().expand(count, *tensor.shape).clone().to(device)
            for name, tensor in network.state_dict().items()
        }
        self.x = torch.randn(count, batch, 3, 32, 32).to(device)
        self.y = torch.randint(0, 10, (count, batch)).to(device)
        self._autocast = partial(
            torch.autocast, device, dtype=torch.bfloat16, enabled=bf16, cache_enabled=False
        )
        self._convs, self._lr = convs, lr
        self._gradients = torch.func.grad(self._loss)

    def _loss(self, weights: dict[str, Tensor]) -> Tensor:
        with self._autocast():
            logits = forward(weights, self.x, self._convs)
        # Each client's mean; their sum, for no client's weights are in another's loss.
        return (
            functional.cross_entropy(logits.float().flatten(0, 1), self.y.flatten(), reduction="sum")
            / self.y.shape[1]
        )

    def __call__(self) -> None:
        """Make the step."""
        found = self._gradients(self.weights)
        torch._foreach_add_(
            list(self.weights.values()), [found[name] for name in self.weights], alpha=-self._lr
        )


def captured(step: Step) -> Step:
    """Give the replay of a step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
