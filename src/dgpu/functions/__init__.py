"""The SDK for functions: `dgpu.model`, `dgpu.task`, futures and `map`. Importing it needs no connection."""
