"""The documents and what they are drawn from."""
