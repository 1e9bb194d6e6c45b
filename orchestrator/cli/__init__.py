"""The command line: a table of names, and the one way errors and answers are printed."""
