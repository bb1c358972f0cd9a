"""A task with many right answers per prompt, small enough to teach and train in seconds on a laptop's CPU."""
