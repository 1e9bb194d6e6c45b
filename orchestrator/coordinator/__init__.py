"""The coordinator's process: sessions, messages, the assignor process and admin requests around the pure group.

One rule: it decides nothing; events enter the group one at a time, and its effects are performed in order.
Imported by workers, which host it and connect to it. Start at shell.py, then messages.py and admin.py; who
may talk: services.py, listener.py, handshake.py.
"""
