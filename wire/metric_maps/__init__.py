"""What each trainer logs itself, a module a trainer: every key with what it is in our vocabulary, or why it is not."""
