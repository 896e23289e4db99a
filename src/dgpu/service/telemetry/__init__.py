"""Telemetry: measurements of GPUs over time, in a separate SQLite file. No decision is based on it."""
