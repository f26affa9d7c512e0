"""The data of a federation on one device: batches with an address, test parts, counts."""

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.data.affected import reduced, reduced_clients
from fedfeat.data.batches import ClientBatches
from fedfeat.data.fingerprint import Fingerprint
from fedfeat.data.partition.merged import cut_anew
from fedfeat.data.partition.parts import ClientSplit, class_counts, first_parts, first_tests, single_part
from fedfeat.data.pipeline import InputPipeline
from fedfeat.data.pixels import Entries, pixels_of
from fedfeat.data.public import public_examples
from fedfeat.data.unlabelled import draw_unlabelled
from fedfeat.seeding import derive_seed
from fedfeat.types import Source, Survey

if TYPE_CHECKING:
    from fedfeat.data.examples import Dataset
    from fedfeat.data.transforms import Transform

Batch = tuple[Tensor, Tensor]


class FederatedData:
    """A data set, split among clients and held whole on one device; its arguments are attributes too.

    Args:
        dataset: The data set; the attribute has what a merged split makes of it.
        split: The split; the attribute is never merged, see `cut_anew`.
        transform: Augmentation and normalisation.
        seed: The experiment's seed; gives the clients' pixel permutations where the split asks for them.
        device: Where inputs and labels are kept.
        public: A data set whose training examples servers may share (`types.Source`), less those tested on.
        dtype: Of inputs as the network reads them.
    """

    def __init__(
        self,
        dataset: "Dataset",
        split: ClientSplit,
        transform: "Transform",
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        public: "Dataset | None" = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.fingerprint = Fingerprint.of(dataset, split, public)
        dataset, split = cut_anew(dataset, split)
        self.dataset, self.split, self.device = dataset, split, torch.device(device)
        self._train, self._test = dataset.train.to(self.device), dataset.test.to(self.device)
        self._pipeline = InputPipeline(dataset.mean, dataset.std, transform, self.device, dtype)
        self._pipeline.check(dataset.name, self._train.inputs)
        self._pixels = pixels_of(dataset, split, seed, self.device)
        self.entries = self._pixels.entries(split)  # examples as clients see them
        self._public = public_examples(public, dataset).to(self.device) if public else None
        self._whole: FederatedData | None = None

    @property
    def num_clients(self) -> int:
        """Number of training clients."""
        return self.split.train.num_clients

    @property
    def num_test(self) -> int:
        """Size of the whole test set."""
        return len(self._test)

    @property
    def num_val(self) -> int:
        """Validation examples of all clients together."""
        return len(self.split.val.indices)

    @property
    def permuted(self) -> bool:
        """Whether every client sees the pixels in an order of its own."""
        return self.split.permuted

    @property
    def augmented(self) -> bool:
        """Whether training inputs are new in every epoch."""
        return self._pipeline.augments

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Training examples per client and class, int64 (K, C)."""
        labels = self.dataset.train.labels.cpu().numpy()
        return class_counts(self.split.train, labels, self.dataset.num_classes)

    def num_examples(self, client_id: int) -> int:
        """Count a client's training examples."""
        return len(self.split.train.of(client_id))

    def largest_batch(self, batch_size: int | None) -> int:
        """Give the examples of a step under a batch size, of which None means the whole client."""
        if batch_size is not None:
            return batch_size
        return int(np.diff(self.split.train.offsets).max(initial=1))

    def test_indices(self, client_id: int) -> np.ndarray:
        """Give the test examples of one client."""
        return self.split.test.of(client_id)

    def test_sizes(self) -> np.ndarray:
        """Count the test examples of every client, (K,)."""
        return self.split.test.sizes()

    def test_means(self, values: np.ndarray) -> np.ndarray:
        """Average a value per test example, (N_test,), over each client's part, (K,); NaN where empty."""
        return self.split.test.means(values)

    def train_batches(
        self,
        client_id: int,
        seed: int,
        round_idx: int,
        batch_size: int | None,
        *,
        drop_singleton: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> ClientBatches:
        """Give the batches of one local fit: the same for the same seed, round and client.

        Args:
            client_id: The client.
            seed: The experiment's seed.
            round_idx: The round.
            batch_size: Examples per batch over all ranks; None is the full data of the client.
            drop_singleton: Whether to drop a smaller last batch that leaves a rank one example (batch norm).
            rank: This process among those that share the client.
            world_size: Number of processes that share the client; each takes a strided share of every batch.
        """
        mine, address = self._own(client_id), (seed, round_idx, client_id)
        return ClientBatches(self, mine, address, batch_size, drop_singleton, rank, world_size)

    def test_batches(
        self, indices: np.ndarray | Tensor, batch_size: int, client_id: int | None = None
    ) -> Iterator[Batch]:
        """Yield test examples in the given order, as a client sees them where one is named, else as the server does."""
        for chosen in self._on_device(indices).split(batch_size):
            x = self._pipeline.test(self._test.inputs[chosen])
            yield self._pixels.of_client(x, client_id), self._test.labels[chosen]

    def plain(self, raw: Tensor, client_id: int | None = None) -> Tensor:
        """Turn stored inputs (B, ...) into what a client's network reads, or the server's, without augmentation."""
        return self._pixels.of_client(self._pipeline.test(raw), client_id)

    def unlabelled(self, survey: Survey, seed: int, round_idx: int) -> Tensor:
        """Give a round's unlabelled inputs as they are stored, (m, ...); augmented ones as the network reads them."""
        inputs, _ = self.shared_examples(survey.source, survey.size, seed, round_idx)
        if not survey.augment:
            return inputs
        address = derive_seed(seed, "unlabelled augmentation", round_idx)
        generator = torch.Generator(self.device).manual_seed(address)
        return self._pipeline.train(inputs, generator)

    def shared_examples(self, source: Source, size: int, seed: int, round_idx: int) -> tuple[Tensor, Tensor]:
        """Give a round's examples of a source: inputs as they are stored, (m, ...), and labels (m,)."""
        examples = {"public": self._public, "test_unlabelled": self._test}.get(source) or self._train
        chosen = self._on_device(
            draw_unlabelled(self.split, source, size, seed, round_idx, num_public=len(self._public or ()))
        )
        return examples.inputs[chosen], examples.labels[chosen]

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where inputs that a server shares can come from."""
        there: dict[Source, bool] = {"heldout": self.num_val > 0, "public": self._public is not None}
        return ("train_pool", "test_unlabelled", *(source for source, found in there.items() if found))

    def labelled_batches(self, client_id: int, batch_size: int) -> Iterator[Batch]:
        """Yield a client's training examples in their fixed order, without augmentation."""
        for entries in self._own(client_id).split(batch_size):
            yield self.plain_inputs(entries), self.train_labels(entries)

    def val_batches(self, batch_size: int, client_id: int | None = None) -> Iterator[Batch]:
        """Yield the validation examples of a client, of all where none is named, without augmentation."""
        parts = self.split.val._replace(indices=self.entries.val)
        entries = parts.indices if client_id is None else parts.of(client_id)
        for chosen in self._on_device(entries).split(batch_size):
            yield self.plain_inputs(chosen), self.train_labels(chosen)

    @property
    def whole(self) -> "FederatedData":
        """The data with the clients that `without` left out."""
        return self if self._whole is None else self._whole

    def without(self, count: int) -> "FederatedData":
        """Give the same data without the last ``count`` clients; the others keep numbers, examples, pixel orders."""
        if not count:
            return self
        left = self.num_clients - count
        train, val = (first_parts(parts, left) for parts in (self.split.train, self.split.val))
        return self._view(train=train, val=val, test=first_tests(self.split.test, left))

    def reduced(self, fraction: float, share: float, seed: int) -> "FederatedData":
        """Give the same data where a random fraction of the clients have only a share of their training examples."""
        chosen = reduced_clients(seed, self.num_clients, fraction)
        return self._view(train=reduced(self.split.train, chosen, share, seed)) if chosen else self

    def pooled(self) -> "FederatedData":
        """Give the same data with one training client that holds everything; test parts stay as they are.

        What some client trains on is no validation example here, and overlapping parts count once; an example
        that clients see each in its own way is another for each of them.
        """
        entries = self.entries.pooled()
        train, val = map(single_part, map(self.examples_of, entries))
        return self._view(entries, train=train, val=val)

    def _view(self, entries: Entries | None = None, **parts: Any) -> "FederatedData":
        one = copy(self)
        one.__dict__.pop("class_counts", None)
        one.split, one._whole = self.split._replace(**parts), self.whole
        one.entries = entries or self._pixels.entries(one.split)
        return one

    def train_inputs(self, entries: Tensor, generator: torch.Generator) -> Tensor:
        """Give training examples as the network reads them, augmented."""
        x = self._pipeline.train(self._train.inputs[self.examples_of(entries)], generator)
        return self._pixels.of_entries(x, entries)

    def plain_inputs(self, entries: Tensor) -> Tensor:
        """Give training examples as the network reads them without augmentation."""
        # For many examples ten times as fast as indexing.
        x = self._pipeline.test(self._train.inputs.index_select(0, self.examples_of(entries)))
        return self._pixels.of_entries(x, entries)

    def train_labels(self, entries: Tensor) -> Tensor:
        """Give the labels of training examples."""
        return self._train.labels[self.examples_of(entries)]

    def examples_of(self, entries: Any) -> Any:
        """Give the training examples of entries, an array or a tensor."""
        return self._pixels.examples(entries)

    def _own(self, client_id: int) -> Tensor:
        parts = self.split.train._replace(indices=self.entries.train)
        return self._on_device(parts.of(client_id))

    def _on_device(self, indices: np.ndarray | Tensor) -> Tensor:
        return torch.as_tensor(indices, device=self.device)
