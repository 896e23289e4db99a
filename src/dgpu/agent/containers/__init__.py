"""Tasks in containers: the engine's API, the runner of one container, and its place in the keeper."""
