"""Small apps on real data, each run by a test."""
