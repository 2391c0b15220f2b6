"""Trains the programs of docs/examples/gallery, and draws their curves and what some have learned.

`gallery/<program>.svg` and `gallery-<program>.png`, each with a metric of its run; ten minutes.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colors, pyplot
from PIL import Image

from docs.pictures.support import ROOT, Picture, card, label, line, train
from trainer.runs.recorded_metrics import read_curves

PAPER, INK, FAINT, BLUE, ORANGE = "#22272e", "#d4dbe2", "#96a0aa", "#539bf5", "#e0823d"
ROWS, COLUMNS = 5, 9


def vae(module: Any, model: Any, figure: Any) -> None:
    """Decode a grid of the two numbers that encode a digit."""
    steps = np.linspace(-1.8, 1.8, COLUMNS), np.linspace(1.4, -1.4, ROWS)
    tiles(figure, model.decoder(np.stack(np.meshgrid(*steps), axis=-1).reshape(-1, 2)))


def wgan_gp(module: Any, model: Any, figure: Any) -> None:
    """Generate digits."""
    noise = np.random.default_rng(0).normal(size=[ROWS * COLUMNS, module.LATENT])
    tiles(figure, model.generator(noise.astype("float32"), training=False))


def segmentation(module: Any, model: Any, figure: Any) -> None:
    """Show images, their masks, and the predicted masks."""
    images, masks = (part[:6] for part in module.data()[1])
    rows = {"image": images[..., 0], "mask": masks, "predicted": np.argmax(model(images), axis=-1)}
    axes = figure.subplots(3, 6, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    classes = colors.ListedColormap(["#2d333b", ORANGE, BLUE])
    for row, (name, parts) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(name, color=FAINT, fontsize=13)
        for axis, part in zip(row, parts, strict=True):
            axis.imshow(part, cmap="gray" if name == "image" else classes)


def weather(module: Any, model: Any, figure: Any) -> None:
    """Draw ten days of the test hours, and what was forecast 12 hours before each."""
    pairs = [(model(inputs).numpy(), target.numpy()) for inputs, target in module.test()]
    forecast, measured = (np.concatenate(part)[:240, 0] for part in zip(*pairs, strict=True))
    axis = figure.subplots()
    axis.plot(measured, color=FAINT, linewidth=1.5, label="measured")
    axis.plot(forecast, color=BLUE, linewidth=2, label="forecast 12 h before")
    axis.set_ylim(min(measured) - 0.2, max(measured) + 1.0)
    axis.set_xlabel("10 days", color=FAINT, fontsize=13)
    axis.legend(frameon=False, labelcolor=INK, fontsize=13, loc="upper center", ncols=2)


def cutmix(module: Any, model: Any, figure: Any) -> None:
    """Show training images, each of two digits."""
    images, labels = (part.numpy() for part in next(iter(module.train())))
    axes = figure.subplots(2, 5, gridspec_kw={"wspace": 0.1, "hspace": 0.3}).ravel()
    for axis, index in zip(axes, np.flatnonzero(np.max(labels, axis=1) < 0.85), strict=False):
        first, second = np.argsort(-labels[index])[:2]
        axis.imshow(images[index, ..., 0], cmap="gray")
        axis.set_title(f"{first} + {second}", color=FAINT, fontsize=13, pad=5)


def mini_gpt(module: Any, model: Any, figure: Any) -> None:
    """Write what follows four beginnings."""
    random = np.random.default_rng(0)
    axis = figure.subplots()
    look = {"fontsize": 13, "va": "top", "family": "monospace", "linespacing": 1.3}
    for row, prompt in enumerate(("the king", "the robots", "the child", "the poets")):
        tokens = [module.WORDS.index(word) for word in prompt.split()]
        while module.WORDS[tokens[-1]] != "." and len(tokens) < module.LENGTH:
            padded = np.array([tokens + [0] * (module.LENGTH - len(tokens))])
            logits = model(padded)[0][0, len(tokens) - 1].numpy()
            shares = np.exp(2 * (logits - logits.max()))  # bolder than the program
            tokens.append(int(random.choice(len(shares), p=shares / shares.sum())))
        words = [module.WORDS[token] for token in tokens[2:]]
        begin, end = " ".join(words[:5]), " ".join(words[5:])
        text = f"{' ' * len(prompt)} {begin}\n  {end}"
        for part, color in ((f"{prompt}\n ", BLUE), (text, INK)):
            axis.text(0, 1 - 0.25 * row, part, color=color, **look)


LEARNED = {each.__name__: each for each in (vae, wgan_gp, segmentation, weather, cutmix, mini_gpt)}
"""What draws the program of its name."""


def tiles(figure: Any, images: Any) -> None:
    """Show ROWS x COLUMNS images [N, height, width, 1] side by side."""
    padded = np.pad(np.asarray(images)[..., 0], ((0, 0), (1, 1), (1, 1)))
    grid = padded.reshape(ROWS, COLUMNS, *padded.shape[1:])
    figure.subplots().imshow(np.vstack([np.hstack(row) for row in grid]), cmap="gray")


def picture(function: Any, metric: str, run_dir: Path) -> bytes:
    """Draw the picture of a program from its finished run."""
    from trainer.fitting.fit import restored

    module = import_module(function.__name__)
    import_module("keras").utils.set_random_seed(0)
    score = json.loads((run_dir / "result.json").read_text())["metrics"][metric]
    figure = pyplot.figure(figsize=(5.6, 3.4), dpi=100, facecolor=PAPER)
    figure.subplots_adjust(left=0.06, right=0.97, bottom=0.1, top=0.82)
    function(module, restored(module.model(), run_dir, "latest"), figure)
    for axis in figure.axes:
        axis.set(facecolor=PAPER, xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    head = {"y": 0.92, "va": "center", "fontsize": 17}
    figure.text(0.05, s=function.__name__, color=INK, ha="left", **head)
    text = f"test {metric.replace('_', ' ')} {score:.3f}"
    figure.text(0.96, s=text, color=FAINT, ha="right", **head)
    figure.canvas.draw()
    data = io.BytesIO()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    image.quantize(64).save(data, "png", optimize=True)
    pyplot.close(figure)
    return data.getvalue()


def curves(metric: str, run_dir: Path) -> str:
    """Draw a metric of a finished run by the step, with its length and the time that it took."""
    result = json.loads((run_dir / "result.json").read_text())
    splits = {"train": "gray", "test": "blue"}
    points = read_curves(run_dir)
    drawn = {split: points[split, metric] for split in splits if (split, metric) in points}
    values = [value for part in drawn.values() for _, value in part]
    low, high, steps = min(values), max(values), result["step"]
    name, score = metric.replace("_", " "), result["metrics"][metric]
    head = f"test {name} {score:.3f} after {steps:,} steps"
    texts = {
        (544, 28): f"{result['wall_secs']:.0f} s on 2 CPU cores",
        (52, 54): f"{high:.3g}", (52, 200): f"{low:.3g}", (544, 218): f"step {steps:,}",
    }  # fmt: skip
    body = [label(16, 28, head, font_size=15, font_weight=600)]
    body += [label(*at, text, "faint", text_anchor="end") for at, text in texts.items()]
    body.append(line([(60, 200), (544, 200)], "line", 1))
    for x, (split, part) in zip((60, 114), drawn.items(), strict=False):
        places = [(at / steps, (value - low) / (high - low)) for at, value in part]
        path = [(60 + 484 * at, 196 - 146 * height) for at, height in places]
        body += [line(path, splits[split]), label(x, 218, split, splits[split], font_weight=600)]
    return card(560, 230, f"{name} by the step", body)


def pictures() -> Iterator[Picture]:
    """Train and draw all."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "gallery")
        ignored = shutil.ignore_patterns("runs", "__pycache__")
        shutil.copytree(ROOT / "docs" / "examples" / "gallery", folder, ignore=ignored)
        sys.path.insert(0, str(folder))
        compare = import_module("compare")
        for program, metric in compare.METRICS.items():
            weights: list[str] = []
            for recipe in compare.RECIPES.get(program, [program]):
                run_dir = train(folder, f"experiment={recipe}", *weights)
                weights = [f"init_from={run_dir}"]
            yield Picture(f"gallery/{program}.svg", curves(metric, run_dir))
            if function := LEARNED.get(program):
                yield Picture(f"gallery-{program}.png", picture(function, metric, run_dir))
