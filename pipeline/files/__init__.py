"""Records in files: what `produce` writes and what a backfill reads as history, from one reader.

One rule: a value reaches the app as it stands in the file or as the topic's type reads it; whatever else comes in is
refused with its file and line. Nothing is inferred from other rows.
Imported by `workers` (produce) and `pipeline.spark` (history); imports definitions and codecs alone, pyarrow where a
file needs it. Start at `parts.py`.
"""
