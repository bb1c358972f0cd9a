"""The database: what is kept, how it gets in exactly once, and the views people read. The only place with duckdb."""
