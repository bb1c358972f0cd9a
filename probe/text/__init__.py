"""What responses say: their text from token ids, its form, the kinds of its tokens. On the background thread only."""
