"""Job files: scripts with directives, and YAML files of tasks."""
