"""The inference form of a net: recorded once, with memory laid out and launches bound, and replayed."""
