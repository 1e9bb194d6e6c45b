"""Tests of the command line; console.py runs it as a user does."""
