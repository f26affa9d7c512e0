from functools import partial

import pytest
import torch
from torch import nn

from fedfeat.config.arguments import check_targets
from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.flops import forward_flops, training_flops
from fedfeat.models.lstm import LastOutput, Scramble, sent140_lstm
from fedfeat.models.network import reading
from fedfeat.types import Vocabulary

WORDS = Vocabulary(50)
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0], [7, 8, 0, 0, 0]], dtype=torch.int32)


def small(vocabulary=WORDS, **options):
    torch.manual_seed(1)
    options = {"embed_dim": 4, "hidden": 3, "fc_width": 6} | options
    return sent140_lstm((5,), 2, vocabulary, **options).eval()


def given_vectors(size=50, dim=7):
    vectors = torch.randn(size, dim, generator=torch.Generator().manual_seed(2))
    vectors[0] = 0
    return Vocabulary(size, vectors)


def num_params(network):
    return sum(p.numel() for p in network.parameters())


def lstm_params(n_in, hidden):
    """Four gates, each of two matrices and two biases."""
    return 4 * hidden * (n_in + hidden + 2)


HEAD = 128 * 10 + 10 + 10 * 2 + 2


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 50 * 300 + lstm_params(300, 128)),
        ({"num_layers": 2}, 50 * 300 + lstm_params(300, 128) + lstm_params(128, 128)),
        ({"mode": "reference"}, 50 * 300 + lstm_params(25, 128)),
        ({"vocabulary": given_vectors(dim=300)}, lstm_params(300, 128)),
        ({"vocabulary": given_vectors(dim=300), "mode": "reference", "num_layers": 2},
         lstm_params(25, 128) + lstm_params(128, 128)),
    ],
    ids=["learned", "two layers", "reference", "fixed", "fixed reference"],
)  # fmt: skip
def test_parameter_counts(options, count):
    network = sent140_lstm((25,), 2, **{"vocabulary": WORDS} | options)
    assert num_params(network) == count + HEAD
    assert num_params(network) == sum(tensor.numel() for tensor in network.state_dict().values())
    assert [name for name, _ in network.blocks()] == ["embed", "lstm", "fc1", "fc2"]


def stepped(words, lstm, layer):
    """The LSTM's equations step by step: words (T, D) to outputs (T, H); gates i, f, g, o."""
    w_in, w_hidden = getattr(lstm, f"weight_ih_l{layer}"), getattr(lstm, f"weight_hh_l{layer}")
    bias = getattr(lstm, f"bias_ih_l{layer}") + getattr(lstm, f"bias_hh_l{layer}")
    hidden = cell = torch.zeros(lstm.hidden_size)
    outputs = []
    for word in words:
        i, f, g, o = (w_in @ word + w_hidden @ hidden + bias).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_step_is_a_token_and_the_last_output_counts(num_layers):
    network = small(num_layers=num_layers)
    lstm = network.get_submodule("encoder.lstm.last.lstm")
    weight = network.get_submodule("encoder.embed.embedding").weight
    fc1, fc2 = network.get_submodule("head.fc1.linear"), network.last_layer
    for ids, features, logits in zip(IDS, network.features(IDS), network(IDS), strict=True):
        outputs = weight[ids.long()]
        for layer in range(num_layers):
            outputs = stepped(outputs, lstm, layer)
        torch.testing.assert_close(features, outputs[-1])
        torch.testing.assert_close(logits, fc2(fc1(outputs[-1]).relu()))


def test_the_representation_is_the_output_of_the_first_linear_layer():
    network = small()
    with torch.no_grad():
        network.get_submodule("head.fc1.linear").bias.fill_(0.5)
    representation = network.representation(IDS)
    expected = network.get_submodule("head.fc1.linear")(network.features(IDS)).relu()
    assert representation.shape == (3, 6)
    assert torch.equal(representation, expected)
    assert torch.equal(network.last_layer(representation), network(IDS))


def test_scrambling_reads_memory_in_another_shape():
    in_memory = torch.arange(12).view(2, 2, 3)  # (T, B, D)
    scrambled = Scramble()(in_memory.transpose(0, 1))
    assert scrambled.tolist() == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


def test_only_the_reference_mixes_the_examples_of_a_batch():
    other = IDS.clone()
    other[1:] = 11
    for mode, mixes in (("correct", False), ("reference", True)):
        network = small(mode=mode)
        assert network.features(IDS).shape == (3, 3)
        assert torch.allclose(network(IDS)[0], network(other)[0]) is not mixes
        assert torch.equal(network(IDS), network(IDS))  # no state is carried


def test_order_and_padding_matter():
    network = small()
    assert not torch.allclose(network.features(IDS), network.features(IDS.flip(1)))
    assert torch.equal(network(IDS.long()), network(IDS))


def test_initial_weights():
    network = small(fc_width=40, hidden=30)
    for name in ("head.fc1.linear", "head.fc2.linear"):
        layer = network.get_submodule(name)
        assert not layer.bias.any()
        assert 0.09 < layer.weight.abs().max() <= 0.1
        assert layer.weight.min() < -0.08
    weight = network.get_submodule("encoder.embed.embedding").weight
    assert not weight[0].any()
    assert 0.09 < weight[1:].abs().max() <= 0.1
    assert 0.15 < small(hidden=30).get_submodule("encoder.lstm.last.lstm").weight_hh_l0.abs().max() < 30**-0.5


def test_the_vector_of_padding_stays_zero():
    network = small().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    weight = network.get_submodule("encoder.embed.embedding").weight
    before = weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(IDS), torch.tensor([0, 1, 1])).backward()
        optimizer.step()
    assert not weight[0].any()
    assert not torch.equal(weight[3], before[3])


def test_given_vectors_are_read_but_are_no_state():
    words = given_vectors()
    network = small(words)
    assert not any("embed" in name for name in (*network.state_dict(), *dict(network.named_parameters())))
    embedded = network.encoder.embed(IDS)
    assert torch.equal(embedded, words.vectors[IDS.long()])
    assert not embedded[2, 2:].any()
    assert network.get_submodule("encoder.lstm.last.lstm").input_size == 7


def test_flops_of_dry_runs():
    """2 T 4H (D + H) of the LSTM and the head's; backward twice that, less what nothing needs.

    No gradient goes to fixed vectors, nor to the state before the first step.
    """
    t, d, h = 25, 300, 128
    head = 2 * (h * 10 + 10 * 2)
    forward = 2 * t * 4 * h * (d + h) + head
    first = 2 * 4 * h * h
    learned, fixed = (sent140_lstm((t,), 2, words) for words in (WORDS, given_vectors(dim=d)))
    assert forward_flops(learned) == forward_flops(fixed) == forward
    assert training_flops(learned) == 3 * forward - first
    assert training_flops(fixed) == 3 * forward - first - 2 * t * 4 * h * d


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "right"}, r"model\.mode must be one of correct, reference, but it is 'right'"),
        ({"num_layers": 0}, r"model\.num_layers must be a positive whole number"),
        ({"hidden": 2.5}, r"model\.hidden must"),
        ({"fc_width": True}, r"model\.fc_width must"),
        ({"embed_dim": -1}, r"model\.embed_dim must"),
        ({"dropout": 1.0}, r"model\.dropout must be at least 0 and below 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_targets({"model": {"_target_": "fedfeat.models.lstm.sent140_lstm", **options}})


def test_images_are_refused():
    with pytest.raises(
        ConfigError, match=r"needs inputs of shape \(T,\), but the data set gives \(1, 8, 8\)"
    ):
        sent140_lstm((1, 8, 8), 2, WORDS)


def test_networks_and_data_sets_must_agree_on_what_is_read():
    network = reading(partial(sent140_lstm, hidden=3), WORDS)(input_shape=(5,), num_classes=2)
    assert network(IDS).shape == (3, 2)
    build = partial(digits_cnn, width=2)
    assert reading(build, None) is build
    with pytest.raises(
        ConfigError, match=r"model must be one that reads tokens, .*, but it is 'digits_cnn'\."
    ):
        reading(build, WORDS)
    with pytest.raises(
        ConfigError, match=r"model must be one that reads numbers, .*, but it is 'sent140_lstm'\."
    ):
        reading(sent140_lstm, None)


@pytest.mark.parametrize(
    ("training", "grads", "by_cudnn"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_where_cudnn_has_no_gradients_it_is_not_asked(monkeypatch, training, grads, by_cudnn):
    """Of an LSTM in evaluation mode, as own models are made by gradients at the end of a turn."""
    seen, forward = [], torch.nn.LSTM.forward
    monkeypatch.setattr(
        torch.nn.LSTM, "forward", lambda *given: seen.append(torch.backends.cudnn.enabled) or forward(*given)
    )
    with torch.set_grad_enabled(grads):
        LastOutput(3, 4, 1).train(training)(torch.rand(2, 5, 3))
    assert seen == [by_cudnn]
    assert torch.backends.cudnn.enabled
