"""Trains six programs of docs/examples/gallery, and draws what they have learned.

`docs/images/gallery-<program>.png`; a picture has the metrics of the run that it is drawn from.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from docs.pictures.support import IMAGES, ROOT, train

PAPER, INK, FAINT, BLUE, ORANGE = "#22272e", "#d4dbe2", "#96a0aa", "#539bf5", "#e0823d"
SIZE, DPI = (5.6, 3.4), 100
ROWS, COLUMNS = 5, 9


def vae(module: Any, model: Any, figure: Any) -> None:
    """Decode a grid of the two numbers that stand for a digit."""
    import numpy as np

    steps = np.linspace(-1.8, 1.8, COLUMNS), np.linspace(1.4, -1.4, ROWS)
    points = np.stack(np.meshgrid(*steps), axis=-1).reshape(-1, 2)
    tiles(figure, model.decoder(points).numpy())


def wgan_gp(module: Any, model: Any, figure: Any) -> None:
    """Generate digits."""
    import numpy as np

    noise = np.random.default_rng(0).normal(size=[ROWS * COLUMNS, module.LATENT])
    tiles(figure, model.generator(noise.astype("float32"), training=False).numpy())


def segmentation(module: Any, model: Any, figure: Any) -> None:
    """Show images, their masks, and the predicted masks."""
    import numpy as np
    from matplotlib.colors import ListedColormap

    images, masks = (part[:6] for part in module.data()[1])
    predicted = np.argmax(model(images), axis=-1)
    colors = ListedColormap(["#2d333b", ORANGE, BLUE])
    axes = figure.subplots(3, 6, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    for row, (name, parts) in enumerate(
        {"image": images[..., 0], "mask": masks, "predicted": predicted}.items()
    ):
        axes[row, 0].set_ylabel(name, color=FAINT, fontsize=13)
        for axis, part in zip(axes[row], parts, strict=True):
            axis.imshow(part, cmap=colors if row else "gray")


def weather(module: Any, model: Any, figure: Any) -> None:
    """Draw ten days of the test hours, and what was forecast 12 hours before each."""
    import numpy as np

    pairs = [(model(inputs).numpy(), target.numpy()) for inputs, target in module.test()]
    forecast, measured = (np.concatenate(part)[:240, 0] for part in zip(*pairs, strict=True))
    axis = figure.subplots()
    axis.plot(measured, color=FAINT, linewidth=1.5, label="measured")
    axis.plot(forecast, color=BLUE, linewidth=2, label="forecast 12 h before")
    axis.set_xticks(range(0, 241, 48), [f"day {day}" for day in range(0, 11, 2)])
    axis.set_yticks([])
    axis.tick_params(colors=FAINT, labelsize=13, length=0)
    axis.set_ylim(min(measured) - 0.2, max(measured) + 1.0)
    axis.legend(frameon=False, labelcolor=INK, fontsize=13, loc="upper center", ncols=2)


def cutmix(module: Any, model: Any, figure: Any) -> None:
    """Show training images, each of two digits."""
    import numpy as np
    import tensorflow as tf

    tf.random.set_seed(1)
    images, labels = (part.numpy() for part in next(iter(module.train())))
    mixed = np.flatnonzero(np.max(labels, axis=1) < 0.85)[:10]
    axes = figure.subplots(2, 5, gridspec_kw={"wspace": 0.1, "hspace": 0.3}).ravel()
    for axis, index in zip(axes, mixed, strict=True):
        axis.imshow(images[index, ..., 0], cmap="gray")
        first, second = np.argsort(-labels[index])[:2]
        axis.set_title(f"{first} + {second}", color=FAINT, fontsize=13, pad=5)


def mini_gpt(module: Any, model: Any, figure: Any) -> None:
    """Write what follows four beginnings."""
    import numpy as np

    random = np.random.default_rng(0)
    axis = figure.subplots()
    for row, prompt in enumerate(("the king", "the robots", "the child", "the poets")):
        tokens = [module.WORDS.index(word) for word in prompt.split()]
        while module.WORDS[tokens[-1]] != "." and len(tokens) < module.LENGTH:
            padded = np.array([tokens + [0] * (module.LENGTH - len(tokens))])
            logits = model(padded)[0][0, len(tokens) - 1].numpy()
            shares = np.exp(2 * (logits - logits.max()))  # bolder than the program
            tokens.append(int(random.choice(len(shares), p=shares / shares.sum())))
        words = [module.WORDS[token] for token in tokens[len(prompt.split()) :]]
        style = {"fontsize": 14, "va": "top", "family": "monospace"}
        y = 0.97 - 0.25 * row
        axis.text(0.01, y, prompt, color=BLUE, **style)
        middle = len(words) // 2 if len(" ".join(words)) > 30 else len(words)
        axis.text(0.01, y, " " * (len(prompt) + 1) + " ".join(words[:middle]), color=INK, **style)
        axis.text(0.01, y - 0.1, "  " + " ".join(words[middle:]), color=INK, **style)


PROGRAMS: dict[str, tuple[Callable[[Any, Any, Any], None], str, str]] = {
    "vae": (vae, "loss", "VAE"),
    "wgan_gp": (wgan_gp, "energy_score", "WGAN-GP"),
    "segmentation": (segmentation, "accuracy", "U-Net"),
    "weather": (weather, "loss", "LSTM"),
    "cutmix": (cutmix, "accuracy", "CutMix"),
    "mini_gpt": (mini_gpt, "loss", "mini GPT"),
}
"""Program -> what draws it, the metric in its picture, its name."""


def tiles(figure: Any, images: Any) -> None:
    """Show ROWS x COLUMNS images [N, height, width, 1] side by side."""
    import numpy as np

    padded = np.pad(images[..., 0], ((0, 0), (1, 1), (1, 1)))
    height, width = padded.shape[1:]
    grid = padded.reshape(ROWS, COLUMNS, height, width).swapaxes(1, 2)
    figure.subplots().imshow(grid.reshape(ROWS * height, COLUMNS * width), cmap="gray")


def draw(program: str, run_dir: Path) -> None:
    """Draw the picture of a program from its finished run."""
    import numpy as np
    from matplotlib import pyplot
    from PIL import Image

    from trainer.fitting.trained_model import restored

    function, metric, title = PROGRAMS[program]
    module = import_module(program)
    model = restored(module.model(), run_dir, "latest")
    score = json.loads((run_dir / "result.json").read_text())["metrics"][metric]
    figure = pyplot.figure(figsize=SIZE, dpi=DPI, facecolor=PAPER)
    figure.subplots_adjust(left=0.06, right=0.97, bottom=0.1, top=0.82)
    function(module, model, figure)
    for axis in figure.axes:
        axis.set_facecolor(PAPER)
        axis.spines[:].set_visible(False)
        if program != "weather":
            axis.set_xticks([])
            axis.set_yticks([])
    head = {"y": 0.92, "va": "center", "fontsize": 17}
    figure.text(0.05, s=title, color=INK, ha="left", **head)
    name = metric.replace("_", " ")
    figure.text(0.96, s=f"test {name} {score:.3f}", color=FAINT, ha="right", **head)
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    picture.quantize(64).save(IMAGES / f"gallery-{program}.png", optimize=True)
    pyplot.close(figure)


def main() -> None:
    """Train and draw all."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "gallery")
        ignored = shutil.ignore_patterns("runs", "__pycache__")
        shutil.copytree(ROOT / "docs" / "examples" / "gallery", folder, ignore=ignored)
        sys.path.insert(0, str(folder))
        for program in PROGRAMS:
            draw(program, train(folder, f"experiment={program}"))


if __name__ == "__main__":
    main()
