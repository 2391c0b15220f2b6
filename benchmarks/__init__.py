"""Measurements against the peers, one command each; see README.md here."""
