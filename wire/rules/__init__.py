"""Rules as data: what they say, read from YAML or JSON. What they do is ``server/rules``."""
