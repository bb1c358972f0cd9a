"""Pages: layout, and the callbacks that join the client to the figures."""
