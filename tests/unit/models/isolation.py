"""What no group of a network may see of another."""

import torch


def assert_isolated(network):
    """The gradients of a group's logits are exactly zero in every row of another group.

    The logits of a group are mixed by random factors, in which a gradient of any of them would show.
    """
    network.eval()
    owned = sorted(c for classes in network.class_sets for c in classes)
    assert owned == list(range(network.num_classes))
    parameters = dict(network.named_parameters())
    rows = {key: groups for key, groups in network.group_rows().items() if key in parameters}
    grouped = [parameters[key] for key in rows]
    logits = network(torch.randn(3, *network.input_shape))
    reached = {key: torch.zeros(len(groups), dtype=torch.bool) for key, groups in rows.items()}
    for group, classes in enumerate(network.class_sets):
        mixed = (logits[:, classes] * torch.randn(len(classes))).sum()
        for key, gradient in zip(rows, torch.autograd.grad(mixed, grouped, retain_graph=True), strict=True):
            touched = gradient.flatten(1).any(1) if gradient.dim() > 1 else gradient != 0
            assert not touched[rows[key] != group].any(), f"{key} of another group learns from {classes}"
            reached[key] |= touched
    # Single neurons are silent on three images, but no layer is, and every class has a row of the last one.
    assert all(touched.any() for touched in reached.values())
    assert reached[f"{network.last_layer_name}.bias"].all()
