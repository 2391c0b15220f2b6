"""The processes of a run: who they are, where they listen, and how they talk."""
