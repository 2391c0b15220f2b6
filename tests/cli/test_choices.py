from __future__ import annotations

from trainer.cli.choices import first_comment, key_comments

TEXT = """\
# @package _global_
#
# What this is.

_target_: a.b
width: 3 # channels
defaults:
  - b
name: 'a # b'  # a name with a hash
# How many
# there are.
count: null
sizes: [1, 2]  # both
inner:
  # Deeper down.
  depth: 1
  free: {a: 1}
"""


def test_first_comment_is_the_explanation() -> None:
    assert first_comment(TEXT) == "What this is."
    assert first_comment("a: 1\n") == ""


def test_key_comments_of_file_without_keys_are_empty() -> None:
    assert key_comments("# nothing\n") == key_comments("# a list\n- a\n") == {}
