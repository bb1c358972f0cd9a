"""Rules: evaluated on each complete step, kept in the database, replayed on recorded runs."""
