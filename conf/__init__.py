"""The configuration groups: one folder a group, one YAML file a choice."""
