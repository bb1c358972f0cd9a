"""The pages people watch: a Dash app in a process of its own that asks the server over HTTP."""
