"""Writes what is generated of the documentation: `python docs/generate.py`, or `make docs`.

That is a page for each section of keys and each group of choices, the list of these pages in
`docs/reference/configuration.md`, and the list of decisions in `docs/adr/index.md`. Keys, defaults,
rules and explanations come from where the program takes them: `trainer/config/schema.py`, the YAML
files of the groups, and the signatures of their targets. The pages are committed, so that they can
be read without a build. TensorFlow is not imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is started as a script

from trainer.annotations import Free, Semantic, Structural  # noqa: E402
from trainer.cli.choices import first_comment, key_comments  # noqa: E402
from trainer.config.options import constraints, signatures, targets  # noqa: E402
from trainer.config.schema import ENGINE_KEYS, GROUPS, ONE_CHOICE, Experiment, Fault  # noqa: E402
from trainer.runs import identity  # noqa: E402

DOCS = ROOT / "docs"
FOLDER = "reference/configuration"
TOP_LEVEL = "top-level"
"""The page of the keys that are in no section."""

_HELP = {item.name: item.metadata["help"] for item in fields(Experiment)} | {
    TOP_LEVEL: "keys that are in no section",
    "experiment": "recipes: choices and values together",
}
_RECIPES = "experiment"
"""The group whose choices are only listed: each is a file that `--help` prints."""
_NOTE = "<!-- written by docs/generate.py -->"
_END = "<!-- end -->"
_HEAD = "| key | default | value | meaning | may change |\n| --- | --- | --- | --- | --- |\n"
_LATER = {Free: "yes", Semantic: "if allowed", Structural: "no"}
_ARTICLE = re.compile(r"\ban? ")


def main() -> None:
    """Write the pages, and remove those of sections and groups that no longer exist."""
    pages = generate()
    for file in (DOCS / FOLDER).glob("*.md"):
        if str(file.relative_to(DOCS)) not in pages:
            file.unlink()
    for path, text in pages.items():
        (DOCS / path).write_text(text)


def generate() -> dict[str, str]:
    """Return the text of each page, by its path in docs/."""
    sections = _sections()
    pages: dict[str, str] = {}
    for name in sorted({*sections, *GROUPS}):
        lines = [f"# {name}\n", f"{_NOTE}\n"]
        section = sections.get(name, [])
        if name in GROUPS:
            lines += [f"{_sentence(_HELP[name])}\n", *_choices(name), *section]
        else:
            lines += section[1:]  # its heading is the page's
        pages[f"{FOLDER}/{name}.md"] = _page(lines)
    groups = [*_list("group", GROUPS), "", *_list("section", sorted({*sections} - {*GROUPS}))]
    pages[f"{FOLDER}.md"] = _insert(f"{FOLDER}.md", groups)
    pages["adr/index.md"] = _insert("adr/index.md", _decisions())
    return pages


def _page(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _list(kind: str, names: Iterable[str]) -> Iterator[str]:
    yield f"| {kind} | |\n| --- | --- |"
    for name in names:
        yield f"| [`{name}`](configuration/{name}.md) | {_cell(_HELP[name])} |"


def _insert(path: str, lines: list[str]) -> str:
    """Return a page with new lines between its two comments."""
    before, _, rest = (DOCS / path).read_text().partition(_NOTE)
    return "\n".join([f"{before}{_NOTE}", "", *lines, "", f"{_END}{rest.partition(_END)[2]}"])


def _decisions() -> list[str]:
    """List the pages of docs/adr with their titles."""
    pages = sorted((DOCS / "adr").glob("0*.md"))
    titles = [file.read_text().partition("\n")[0].lstrip("# ") for file in pages]
    return [f"- [{title}]({file.name})" for title, file in zip(titles, pages, strict=True)]


def _sections() -> dict[str, list[str]]:
    """Return the tables of each section of the schema, and of the keys in none."""
    lines = [f"# {TOP_LEVEL}\n", f"{_sentence(_HELP[TOP_LEVEL])}\n", _table(Experiment, "")]
    sections = {TOP_LEVEL: lines, "fault": _parts(Fault, "fault.<name>")}
    for name, part in _inner(Experiment):
        sections[name] = _parts(part, name)
    return sections


def _parts(schema: Any, path: str) -> list[str]:
    """Return the table of a part of the schema, and those of the parts within it."""
    lines = [f"## Keys of `{path}`\n", f"{schema.__doc__}\n", _table(schema, f"{path}.")]
    for name, part in _inner(schema):
        lines += _parts(part, f"{path}.{name}")
    return lines


def _inner(schema: Any) -> Iterator[tuple[str, Any]]:
    for item in fields(schema):
        if item.default_factory is not MISSING and is_dataclass(part := item.default_factory()):
            yield item.name, type(part)


def _table(schema: Any, path: str) -> str:
    inner = dict(_inner(schema))
    rows = []
    for item in fields(schema):
        if item.name not in (*inner, *GROUPS, "choices"):
            default = item.default if item.default_factory is MISSING else item.default_factory()
            key = f"{path}{item.name}"
            value = constraints.describe(constraints.of_field(item))
            rows.append(_row(key, default, value, item.metadata["help"]))
    return _HEAD + "\n".join(rows) + "\n"


def _choices(group: str) -> Iterator[str]:
    """Yield a list of the choices of a group, and the options of each."""
    files = sorted((ROOT / "conf" / group).glob("*.yaml"))
    is_described = group != _RECIPES
    yield "| choice | |\n| --- | --- |"
    for file in files:
        name = f"[`{file.stem}`](#{group}{file.stem})" if is_described else f"`{file.stem}`"
        yield f"| {name} | {_cell(first_comment(file.read_text()))} |"
    yield ""
    if is_described:
        yield from (_choice(group, file) for file in files)
    else:
        yield f"`python train.py --help {group}=<name>` prints a recipe."


def _choice(group: str, file: Path) -> str:
    """Describe a choice: the options of its target, or, where it has none, the file itself."""
    text = file.read_text()
    content = yaml.safe_load(text) or {}
    head = f"## `{group}={file.stem}`\n\n{_sentence(first_comment(text))}\n"
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
    options = targets.options_of(signature) if signature else {}
    target = node["_target_"]
    group, _, inner_group = path.partition(".")
    own = {} if inner_group and group in ONE_CHOICE else ENGINE_KEYS.get(group, {})
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
        value = ""
        if name in own:
            value = constraints.describe(constraints.of_field(own[name]))
        elif name in options and options[name].annotation is not Parameter.empty:
            value = constraints.describe(options[name].annotation)
        # In a file of callbacks the keys are below the callback's name.
        comment = comments.get(name) or comments.get(f"{path.rpartition('.')[2]}.{name}")
        rows.append(_row(key, default, value, comment or own[name].metadata["help"], target))
    table = _HEAD + "\n".join(rows) if rows else "It has no options."
    return f"`{target}`\n\n{table}\n"


def _row(key: str, default: Any, value: str, text: str, target: str | None = None) -> str:
    cells = [
        f"`{key}`",
        _code(_yaml(default)),
        _cell(_ARTICLE.sub("", value).replace("true or false", "bool")),
        _cell(text),
        _later(key, target),
    ]
    return f"| {' | '.join(cells)} |"


def _later(key: str, target: str | None) -> str:
    """Return whether a key may differ when a run is continued."""
    effect = identity.effect_of(key, target)
    return "with `resume=`" if effect == Free(names_run=True) else _LATER[type(effect)]


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


if __name__ == "__main__":
    main()
