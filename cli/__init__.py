"""The ``entrostat`` command. Commands import what they need when they run, so that ``--help`` is instant."""
