"""The colors of the page: every text can be read in both themes."""

import importlib.resources
import re

import pytest

LEAST_CONTRAST = 4.5  # of WCAG 2, level AA
STYLE = importlib.resources.files("trainer.cli.page").joinpath("templates/page.css").read_text()
GROUNDS = ("ground", "panel", "hover", "chosen")
TEXTS = ("ink", "soft", "accent", "good", "bad", "warn")


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_have_contrast(theme):
    block = re.findall(r":root[^{]*{([^}]*)}", STYLE)[theme]
    colors = dict(re.findall(r"--(\w+): (#\w{6})", block))
    for ground in GROUNDS:
        for text in TEXTS:
            dark, light = sorted(luminance(colors[name]) for name in (ground, text))
            contrast = (light + 0.05) / (dark + 0.05)
            assert contrast >= LEAST_CONTRAST, f"{text} on {ground}: {contrast:.2f}"
