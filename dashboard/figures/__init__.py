"""Figures: pure functions from rows to Plotly figures. They fetch nothing and keep nothing."""
