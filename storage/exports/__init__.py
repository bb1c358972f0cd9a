"""A run as Parquet files: written, read again with suspicion, taken into a database, asked in SQL where it lies."""
