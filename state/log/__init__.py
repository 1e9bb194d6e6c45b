"""Where topics live: the Log port and its implementations."""
