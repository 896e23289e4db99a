"""dgpu: a GPU scheduler that explains itself."""

__version__ = "0.1.0"
