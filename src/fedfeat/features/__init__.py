"""What the neurons of a network encode, as pure functions on tensors."""
