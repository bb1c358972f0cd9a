"""Where a trainer's tensors become ours: the only place that knows a trainer's private names."""
