"""The log as processes use it: opened by its URL, waited for while it is busy, full or away; what was produced of a file.

One rule: who only reads never creates a log. Imported by every room of workers/ but calls/. Start at `patient_log.py`.
"""
