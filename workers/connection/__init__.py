"""A worker's connection to the coordinator, and the secrets with which processes of this machine prove themselves.

One rule: the connection is kept alive beside whatever the worker does. Imported by worker/, instance/ and fleet/. Start at
`uplink.py`.
"""
