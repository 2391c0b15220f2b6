"""What a YAML file says of itself: its explanation, and those of its keys. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

import yaml


def first_comment(text: str) -> str:
    """Gives the first comment line of a YAML file, its explanation."""
    comments = (line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in comments if line and not line.startswith("@package")), "")


def key_comments(text: str) -> dict[str, str]:
    """Gives the comment of every key that holds a value: behind it, or in the lines right above; "" where there is none.

    The list of defaults is none of them.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return dict(_walk(node, "", text.splitlines())) if isinstance(node, yaml.MappingNode) else {}


def _walk(node: yaml.MappingNode, path: str, lines: list[str]) -> Iterator[tuple[str, str]]:
    for key, value in node.value:
        name = f"{path}{key.value}"
        if name == "defaults":
            continue  # Hydra's, no key of the configuration
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _walk(value, f"{name}.", lines)
        else:
            yield name, _behind(value, lines) or _above(key.start_mark.line, lines)


def _behind(value: yaml.Node, lines: list[str]) -> str:
    end = value.end_mark
    rest = lines[end.line][end.column :].strip() if end.line < len(lines) else ""
    return rest.lstrip("# ") if rest.startswith("#") else ""


def _above(line: int, lines: list[str]) -> str:
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(text.strip().lstrip("# ") for text in lines[first:line])
