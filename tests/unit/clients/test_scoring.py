"""What counts as a prediction."""

import math

import torch

from fedfeat.clients.scoring import score_examples

LOGITS = torch.tensor(
    [
        [2.0, 1.0, 0.0],
        [math.nan, math.nan, math.nan],
        [0.0, math.nan, 0.0],
        [math.inf, 0.0, 0.0],
        [-math.inf, -math.inf, -math.inf],
        [0.5, -math.inf, 0.0],  # a trimmed network, which lacks class 1
        [0.5, -math.inf, 0.0],
    ]
)
LABELS = torch.tensor([0, 0, 1, 0, 0, 0, 1])


def test_logits_that_are_not_finite_predict_nothing_and_have_no_loss():
    scores = score_examples(lambda inputs: inputs, [(LOGITS, LABELS)])
    assert scores.correct.tolist() == [1, 0, 0, 0, 0, 1, 0]
    assert [math.isnan(loss) for loss in scores.losses] == [False, True, True, True, True, False, False]
    assert math.isinf(scores.losses[6])
