"""The bytes of keys and values: codecs, their JSON form for people, which types read which, which partition a key has.

One rule: equal keys give equal bytes, and what was encoded can be decoded again.
Imported by every other room of pipeline, and by workers; imports errors alone. Start at `codecs.py`.
"""
