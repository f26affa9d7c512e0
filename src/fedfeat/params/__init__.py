"""Arithmetic on parameters: dictionaries from names to tensors, as values."""

from fedfeat.params.mean import WeightedMean as WeightedMean
from fedfeat.params.rows import Row as Row
from fedfeat.params.rows import rows as rows
from fedfeat.params.tensors import copy_into as copy_into
from fedfeat.params.tensors import full as full
from fedfeat.params.tensors import select as select
from fedfeat.params.tensors import snapshot as snapshot
from fedfeat.params.tensors import standalone as standalone
from fedfeat.params.tensors import sum_dtype as sum_dtype
from fedfeat.params.tensors import trained_names as trained_names
from fedfeat.params.tensors import zeros_of as zeros_of
