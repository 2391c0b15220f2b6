"""The host side of training: the loop and its helpers."""
