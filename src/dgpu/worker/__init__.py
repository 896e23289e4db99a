"""The worker process: keeps models loaded, runs functions one at a time. Needs the standard library and msgspec."""
