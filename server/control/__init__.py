"""The person's hand: what should be on in a run, and what came of it."""
