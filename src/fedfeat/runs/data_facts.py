"""What a network needs to know of the data, kept in the run directory, so that a model can be loaded without them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.errors import CheckpointError
from fedfeat.files import fields_of, write_once
from fedfeat.runs.directory import DATA as FILE
from fedfeat.types import Vocabulary

if TYPE_CHECKING:
    from fedfeat.data.federated import FederatedData

_RULE = "describe the run's data"


@dataclass(frozen=True, eq=False)
class DataFacts:
    """What a network needs to know of a federation's data.

    Attributes:
        name: Name of the data set.
        input_shape: Shape of one input as it is stored.
        classes: Names of the classes.
        mean: Mean of each channel, on a scale where 255 is 1.
        std: Standard deviation of each channel, likewise.
        permuted: Whether every client sees the pixels in an order of its own.
        class_counts: Training examples of each client and class, int64 (K, C).
        vocabulary: What the inputs are ids of, for text; None for others.
        fingerprint: Digests of examples and split, see `data.fingerprint.Fingerprint`.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    permuted: bool
    class_counts: np.ndarray
    vocabulary: Vocabulary | None = None
    fingerprint: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: "FederatedData") -> "DataFacts":
        """Take them from the data."""
        one = data.dataset
        moments = tuple(one.mean), tuple(one.std)
        shape, classes = one.input_shape, tuple(one.classes)
        found = data.class_counts, one.vocabulary
        return cls(one.name, shape, classes, *moments, data.permuted, *found, fingerprint=data.fingerprint)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def num_clients(self) -> int:
        """Number of training clients."""
        return len(self.class_counts)

    def write(self, run_dir: Path) -> None:
        """Write them, once: a run that is started again has the same data."""
        words = self.vocabulary
        fields = {**vars(self), "class_counts": self.class_counts.tolist()}
        fields["vocabulary"] = words and {"size": words.size, "vectors": words.vectors is not None}
        write_once(run_dir / FILE, fields, indent=None)

    @classmethod
    def read(cls, run_dir: Path) -> "DataFacts | None":
        """Read them from a run directory; None where they are not there, or not all: vectors of words are not kept.

        Raises:
            CheckpointError: The file is damaged.
        """
        path = run_dir / FILE
        if not path.exists():
            return None
        with fields_of(path, _RULE) as fields:
            words = fields.pop("vocabulary")
            counts = np.array(fields.pop("class_counts"), dtype=np.int64)
            plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
            if words and words["vectors"]:
                return None
            return cls(**plain, class_counts=counts, vocabulary=words and Vocabulary(words["size"]))


def check_same_data(run_dir: Path, data: "FederatedData") -> None:
    """Refuse data that are not those that the run of a directory began with.

    Raises:
        CheckpointError: Examples or split differ, or the file that tells is damaged.
    """
    path = run_dir / FILE
    if not path.exists():
        return
    with fields_of(path, _RULE) as fields:
        stored = fields.get("fingerprint") or ()
    for what, old, new in zip(data.fingerprint._fields, stored, data.fingerprint, strict=False):
        if old != new:
            raise CheckpointError(
                f"data must be those that the run in {run_dir} began with, but the digest of the {what} is "
                f"{new[:12]} instead of {old[:12]}: bring back the files as they were, or begin anew in another "
                "hydra.run.dir."
            )
