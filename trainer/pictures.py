"""Pictures of what an evaluation found, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_MARGIN = 4
_TEXT = 12  # pixels, height of the letters
_BLACK, _WHITE, _BLUE = (0, 0, 0), (255, 255, 255), (8, 48, 107)
_LINE = (200, 200, 200)
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
    named = size <= _MOST_NAMED
    names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names] if named else []
    room = max(_width(font, f"{count:g}") for count in np.unique(matrix)) if named else 0
    cell = max(room, _TEXT) + 2 * _MARGIN if named else max(1, 1024 // size)
    left = max([_width(font, name) for name in names], default=0) + _TEXT + 3 * _MARGIN
    canvas = Image.new("RGB", (left + size * cell + 1, left + size * cell + 1), _WHITE)
    draw = ImageDraw.Draw(canvas)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    canvas.paste(Image.fromarray(_shaded(shares, cell)), (left, left))
    middles = [left + number * cell + cell // 2 for number in range(size)]
    for middle, name in zip(middles, names, strict=False):
        draw.text((left - _MARGIN, middle), name, _BLACK, font, anchor="rm")
        _upright(canvas, name, (middle, left - _MARGIN), font)
    for row, column in zip(*np.nonzero(matrix), strict=True) if named else ():
        color = _WHITE if shares[row, column] > 0.5 else _BLACK
        draw.text((middles[column], middles[row]), f"{matrix[row, column]:g}", color, font, anchor="mm")
    draw.text((left + size * cell // 2, _MARGIN), "prediction", _BLACK, font, anchor="ma")
    _upright(canvas, "label", (_MARGIN + _TEXT // 2, left + (size * cell + _width(font, "label")) // 2), font)
    return np.asarray(canvas)


def _shaded(shares: np.ndarray, cell: int) -> np.ndarray:
    """Gives shares, [C, C], as squares of `cell` pixels with lines between them while there is room: [H, W, 3] uint8."""
    white, blue = np.array(_WHITE), np.array(_BLUE)
    shades = np.rint(white + (blue - white) * shares[..., None]).astype(np.uint8)
    squares = np.pad(shades.repeat(cell, axis=0).repeat(cell, axis=1), ((0, 1), (0, 1), (0, 0)), constant_values=255)
    if cell > 4:
        squares[::cell] = squares[:, ::cell] = _LINE
    return squares


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
