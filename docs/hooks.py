"""Generates the configuration reference and the list of decisions while MkDocs builds the site.

Keys, defaults, rules and explanations come from where the program takes them:
`trainer/config/schema.py`, the YAML files of the groups, and the signatures of their targets. So
the pages cannot contradict the program. TensorFlow is not imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # mkdocs does not start in it

from trainer.annotations import Free, Semantic, Structural  # noqa: E402
from trainer.cli.choices import first_comment, key_comments  # noqa: E402
from trainer.config.options import option_types, signatures  # noqa: E402
from trainer.config.schema import ENGINE_KEYS, GROUPS, Experiment, Fault  # noqa: E402
from trainer.runs import identity  # noqa: E402

_HEAD = "| key | default | value | | may change |\n| --- | --- | --- | --- | --- |\n"
_LATER = {Free: "yes", Semantic: "if allowed", Structural: "no"}
_ARTICLE = re.compile(r"\ban? ")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace each marker by what is generated for it; MkDocs calls this for each page."""
    for marker, generate in {
        "<!-- configuration -->": configuration,
        "<!-- decisions -->": decisions,
    }.items():
        if marker in markdown:
            markdown = markdown.replace(marker, generate())
    return markdown


def configuration() -> str:
    """Return the reference of every key and every choice."""
    return "\n".join(
        ["## Keys\n", *_sections(Experiment, ""), "## Groups\n", *(_group(name) for name in GROUPS)]
    )


def decisions() -> str:
    """List the pages of docs/adr with their titles."""
    pages = sorted(file for file in (ROOT / "docs" / "adr").glob("*.md") if file.name != "index.md")
    return "\n".join(
        f"- [{file.read_text().partition(chr(10))[0].lstrip('# ')}]({file.name})" for file in pages
    )


def _sections(schema: Any, path: str) -> Iterator[str]:
    """Yield the table of a part of the schema, and those of the parts within it."""
    plain = []
    inner = []
    for item in fields(schema):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if is_dataclass(default):
            inner.append((item.name, type(default)))
        elif item.name == "fault":
            inner.append(("fault.<name>", Fault))
        elif item.name not in (*GROUPS, "choices"):
            key = f"{path}{item.name}"
            plain.append(_row(key, default, _describe(item), item.metadata["help"]))
    yield _HEAD + "\n".join(plain) + "\n"
    for name, part in inner:
        yield f"### `{path}{name}`\n\n{part.__doc__}\n"
        yield from _sections(part, f"{path}{name}.")


def _group(group: str) -> str:
    files = sorted((ROOT / "conf" / group).glob("*.yaml"))
    lines = [f"### `{group}=`\n", "| choice | |\n| --- | --- |"]
    lines += [
        f"| [`{file.stem}`](#{group}-{file.stem}) | {_cell(first_comment(file.read_text()))} |"
        for file in files
    ]
    return "\n".join([*lines, "", *(_choice(group, file) for file in files)])


def _choice(group: str, file: Path) -> str:
    """Describe a choice: the options of its target, or, where it has none, the file itself."""
    text = file.read_text()
    content = yaml.safe_load(text) or {}
    sentence = _sentence(first_comment(text))
    head = f"#### `{group}={file.stem}` {{ #{group}-{file.stem} }}\n\n{sentence}\n"
    nodes = (
        {group: content}
        if content.get("_target_")
        else {f"{group}.{name}": node for name, node in content.items() if _is_target(node)}
    )
    if not nodes:
        return f"{head}\n```yaml\n{text.rstrip()}\n```\n"
    tables = [_target(path, node, key_comments(text)) for path, node in nodes.items()]
    return "\n".join([head, *tables, *_inner_groups(group, content.get("defaults", []))])


def _inner_groups(group: str, defaults: list[Any]) -> Iterator[str]:
    """Yield the options of the groups within a choice, such as `dataset/normalize`.

    Of a node, such as `/model@generator`, only the choice: its options are those of its group.
    """
    for item in defaults:
        if isinstance(item, Mapping):
            for name, choice in item.items():
                if name.startswith("override "):
                    continue
                if name.startswith("/"):
                    other, _, place = name[1:].partition("@")
                    yield f"`{other}@{group}.{place}={choice}`\n"
                    continue
                text = (ROOT / "conf" / group / name / f"{choice}.yaml").read_text()
                yield _target(f"{group}.{name}", yaml.safe_load(text), key_comments(text))


def _is_target(node: Any) -> bool:
    return isinstance(node, Mapping) and "_target_" in node


def _target(path: str, node: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    signature = signatures.read(node["_target_"])
    options = (
        {option.name: option for option in (*signature.positional, *signature.keywords)}
        if signature
        else {}
    )
    target = node["_target_"]
    own = ENGINE_KEYS.get(path.partition(".")[0], {})
    engine = {name: item.default for name, item in own.items() if item.default is not MISSING}
    listed = {name: value for name, value in node.items() if name not in ("_target_", "defaults")}
    values = {**listed, **{name: value for name, value in engine.items() if name not in listed}}
    rows = []
    for name, default in values.items():
        key = f"{path}.{name}"
        if _is_target(default):  # a function of the user's own
            inner = f"{name}._target_"
            comment = comments.get(inner) or comments[f"{path.rpartition('.')[2]}.{inner}"]
            rows.append(_row(f"{key}._target_", default["_target_"], "a str", comment, target))
            continue
        if isinstance(default, Mapping) and name not in comments:  # what it sets in a node
            for inner, value in default.items():
                rows.append(_row(f"{key}.{inner}", value, "", comments[f"{name}.{inner}"], target))
            continue
        # The options of TensorFlow's own cannot be read without importing it.
        annotation = options[name].annotation if name in options else None
        value = ""
        if name in own:
            value = _describe(own[name])
        elif annotation and signature:
            value = option_types.describe_type(annotation, signature.names)
        # In a file of callbacks the keys are below the callback's name.
        comment = comments.get(name) or comments.get(f"{path.rpartition('.')[2]}.{name}")
        rows.append(_row(key, default, value, comment or own[name].metadata["help"], target))
    table = _HEAD + "\n".join(rows) if rows else "It has no options."
    return f"`{target}`\n\n{table}\n"


def _describe(item: Field[Any]) -> str:
    """Return what a field of the schema accepts."""
    return option_types.describe_type(_expression(item.type), {}, item.metadata["rules"])


def _row(key: str, default: Any, value: str, text: str, target: str | None = None) -> str:
    cells = [
        f"`{key}`",
        _code(_yaml(default)),
        _cell(_ARTICLE.sub("", value)),
        _cell(text),
        _later(key, target),
    ]
    return f"| {' | '.join(cells)} |"


def _later(key: str, target: str | None) -> str:
    """Return whether a key may differ when a run is continued."""
    effect = identity.effect_of(key, target)
    return "with `resume=`" if effect == Free(names_run=True) else _LATER[type(effect)]


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _yaml(value: Any) -> str:
    """Format a value as YAML writes it."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).partition("\n")[0]


def _code(text: str) -> str:
    """Return code for a cell; within backticks a bar could not be written."""
    return f"<code>{_cell(text)}</code>".replace("\\|", "&#124;") if "|" in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}.".replace("<", "&lt;") if text else ""
