"""Metrics of an instance: what is measured, how it is written for Prometheus, and where it is served.

Start reading at families.py; measures.py holds the values, page.py writes them, server.py serves them.
"""
