"""Pictures of what an evaluation found, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_MARGIN = 4
_TEXT = 12  # pixels, height of the letters
_BLACK, _WHITE, _BLUE = (0, 0, 0), (255, 255, 255), (8, 48, 107)
_LEAST_SIDE = 96  # pixels; smaller images are enlarged
_MOST_NAMED = 60  # classes whose names can still be told apart
_LONGEST_NAME = 16


def confusion_matrix(matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Draws a confusion matrix, each row shaded by its share of the row's examples.

    Args:
        matrix: counts, [C, C]; rows are labels, columns are predictions.
        names: of the classes; numbers and names are drawn while there is room for them.

    Returns:
        [H, W, 3] uint8.
    """
    size, font = len(matrix), _font()
    names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    if size > _MOST_NAMED:
        names = [""] * size
    numbers = [[f"{count:g}" for count in row] for row in matrix]
    room = max(_width(font, text) for row in numbers for text in row) + 2 * _MARGIN
    cell = max(room, _TEXT + 2 * _MARGIN) if size <= _MOST_NAMED else max(1, 1024 // size)
    left = max(_width(font, name) for name in names) + _TEXT + 3 * _MARGIN
    canvas = Image.new("RGB", (left + size * cell + 1, left + size * cell + 1), _WHITE)
    draw = ImageDraw.Draw(canvas)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for row in range(size):
        middle = left + row * cell + cell // 2
        draw.text((left - _MARGIN, middle), names[row], _BLACK, font, anchor="rm")
        _upright(canvas, names[row], (middle, left - _MARGIN), font)
        for column in range(size):
            x, y, share = left + column * cell, left + row * cell, shares[row, column]
            shade = tuple(round(light + (dark - light) * share) for light, dark in zip(_WHITE, _BLUE, strict=True))
            draw.rectangle((x, y, x + cell, y + cell), shade, (200, 200, 200) if cell > 4 else None)
            if size <= _MOST_NAMED and matrix[row, column]:
                draw.text((x + cell // 2, y + cell // 2), numbers[row][column], _WHITE if share > 0.5 else _BLACK, font, anchor="mm")
    draw.text((left + size * cell // 2, _MARGIN), "prediction", _BLACK, font, anchor="ma")
    _upright(canvas, "label", (_MARGIN + _TEXT // 2, left + (size * cell + _width(font, "label")) // 2), font)
    return np.asarray(canvas)


def captioned(images: np.ndarray, captions: Sequence[str]) -> np.ndarray:
    """Draws a line of text under each image; small images are enlarged, pixel by pixel.

    Args:
        images: [N, H, W, 1 or 3] uint8, N at least 1.
        captions: N of them.

    Returns:
        [N, H', W', 3] uint8.
    """
    font, (height, width) = _font(), images.shape[1:3]
    factor = -(-_LEAST_SIDE // min(height, width))
    full = max(factor * width, *(_width(font, caption) + 2 * _MARGIN for caption in captions))
    found = []
    for image, caption in zip(images, captions, strict=True):
        canvas = Image.new("RGB", (full, factor * height + _TEXT + 2 * _MARGIN), _WHITE)
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        picture = picture.resize((factor * width, factor * height), Image.Resampling.NEAREST)
        canvas.paste(picture, ((full - factor * width) // 2, 0))
        ImageDraw.Draw(canvas).text((full // 2, factor * height + _MARGIN), caption, _BLACK, font, anchor="ma")
        found.append(np.asarray(canvas))
    return np.stack(found)


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT)


def _width(font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: str) -> int:
    return int(font.getlength(text)) + 1 if text else 0


def _upright(canvas: Image.Image, text: str, foot: tuple[int, int], font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> None:
    """Draws text from below to above; `foot`: the middle of where it begins."""
    if text:
        strip = Image.new("RGB", (_width(font, text), _TEXT + _MARGIN), _WHITE)
        ImageDraw.Draw(strip).text((0, (_TEXT + _MARGIN) // 2), text, _BLACK, font, anchor="lm")
        turned = strip.rotate(90, expand=True)
        canvas.paste(turned, (foot[0] - turned.width // 2, foot[1] - turned.height))
