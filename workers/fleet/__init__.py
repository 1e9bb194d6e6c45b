"""What stands outside of instances: the fleet that one `run` starts, clients that ask a group, `app.run()`.

One rule: it talks to a running group through its coordinator alone. Imported by commands/. Start at `fleet.py`.
"""
