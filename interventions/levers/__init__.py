"""What every trainer has beside its loss: the learning rate, and pausing, stopping or saving it."""
