"""Telemetry: what cards measured, over time, in a SQLite file of its own. Nothing here is ever decided from."""
