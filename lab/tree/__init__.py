"""A tree of three steps with six rewarded paths: ``entrostat lab tree`` (CaSP Sec. 4.3, Fig. 5)."""
