"""Figures of an evaluation, drawn with Pillow: confusion matrix, images with captions, grids."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_MARGIN = 4
_TEXT_HEIGHT = 12  # pixels
_BLACK = (0, 0, 0)
_WHITE = (255, 255, 255)
_BLUE = (8, 48, 107)
_LINE = (200, 200, 200)
_MIN_SIDE = 96  # pixels; smaller images are enlarged
_MIN_TILE = 32  # pixels; the same for images in a grid
_MAX_NAMED = 60  # more classes have no room for names
_MAX_NAME_LENGTH = 16


def confusion_matrix(matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Draw a confusion matrix, [H, W, 3] uint8, with cells shaded by their fraction of their row.

    Rows are labels, columns are predictions, both in the order of the names at the left.

    Args:
        matrix: counts, [C, C].
        names: of the classes; names and counts are drawn for up to 60 classes.
    """
    size = len(matrix)
    font = _font()
    named = size <= _MAX_NAMED
    names = [_shortened(name) for name in names] if named else []
    count_width = max(_width(font, f"{count:g}") for count in np.unique(matrix)) if named else 0
    cell = max(count_width, _TEXT_HEIGHT) + 2 * _MARGIN if named else max(1, 1024 // size)
    left = max([_width(font, name) for name in names], default=0) + 2 * _MARGIN
    canvas = Image.new("RGB", (left + size * cell + 1, size * cell + 1), _WHITE)
    draw = ImageDraw.Draw(canvas)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    canvas.paste(Image.fromarray(_shaded_cells(shares, cell)), (left, 0))
    middles = [number * cell + cell // 2 for number in range(size)]
    for middle, name in zip(middles, names, strict=False):
        draw.text((left - _MARGIN, middle), name, _BLACK, font, anchor="rm")
    for row, column in zip(*np.nonzero(matrix), strict=True) if named else ():
        color = _WHITE if shares[row, column] > 0.5 else _BLACK
        place = (left + middles[column], middles[row])
        draw.text(place, f"{matrix[row, column]:g}", color, font, anchor="mm")
    return np.asarray(canvas)


def _shaded_cells(shares: np.ndarray, cell: int) -> np.ndarray:
    """Return shares, [C, C], as cells of `cell` pixels, large ones with lines: [H, W, 3] uint8."""
    white = np.array(_WHITE)
    blue = np.array(_BLUE)
    shades = np.rint(white + (blue - white) * shares[..., None]).astype(np.uint8)
    squares = np.pad(
        shades.repeat(cell, axis=0).repeat(cell, axis=1),
        ((0, 1), (0, 1), (0, 0)),
        constant_values=255,
    )
    if cell > 4:
        squares[::cell] = squares[:, ::cell] = _LINE
    return squares


def add_captions(images: np.ndarray, captions: Sequence[str]) -> np.ndarray:
    """Draw a line of text under each image, [N, H', W', 3] uint8.

    Args:
        images: [N, H, W, 1 or 3] uint8, N at least 1; small ones are enlarged by a whole factor.
        captions: N lines.
    """
    font = _font()
    (height, width) = images.shape[1:3]
    factor = -(-_MIN_SIDE // min(height, width))
    total = max(factor * width, *(_width(font, caption) + 2 * _MARGIN for caption in captions))
    framed = []
    for image, caption in zip(images, captions, strict=True):
        canvas = Image.new("RGB", (total, factor * height + _TEXT_HEIGHT + 2 * _MARGIN), _WHITE)
        picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
        picture = picture.resize((factor * width, factor * height), Image.Resampling.NEAREST)
        canvas.paste(picture, ((total - factor * width) // 2, 0))
        ImageDraw.Draw(canvas).text(
            (total // 2, factor * height + _MARGIN), caption, _BLACK, font, anchor="ma"
        )
        framed.append(np.asarray(canvas))
    return np.stack(framed)


def image_grid(images: np.ndarray, columns: int) -> np.ndarray:
    """Put images side by side, row by row, with a white line between them, [H', W', 3] uint8.

    Args:
        images: [N, H, W, 1 or 3] uint8, N at least 1; small ones are enlarged by a whole factor.
        columns: how many are in a row; the last row may be filled up.
    """
    factor = -(-_MIN_TILE // min(images.shape[1:3]))
    large = np.broadcast_to(images, (*images.shape[:3], 3)).repeat(factor, 1).repeat(factor, 2)
    missing = -len(large) % columns
    framed = np.pad(large, ((0, missing), (0, 1), (0, 1), (0, 0)), constant_values=255)
    rows = framed.reshape(-1, columns, *framed.shape[1:])
    grid = rows.transpose(0, 2, 1, 3, 4).reshape(len(rows) * framed.shape[1], -1, 3)
    return grid[:-1, :-1]


def class_colors(masks: np.ndarray) -> np.ndarray:
    """Return a color for each class, [..., 3] uint8, of [...] uint8.

    It is the palette of Pascal VOC (Everingham et al. 2010): class 0 is black, and 255, which
    counts nowhere, nearly white.
    """
    classes = np.arange(256)
    palette = np.zeros((256, 3), np.uint8)
    # Three bits of the number at a time, one for each color, from its brightest bit down.
    for place in range(3):
        for channel in range(3):
            bit = classes >> (3 * place + channel) & 1
            palette[:, channel] |= (bit << (7 - place)).astype(np.uint8)
    return palette[masks]


def png(image: np.ndarray) -> bytes:
    """Return an image, [H, W, 1, 3 or 4] or [H, W] uint8, as the content of a PNG file."""
    content = io.BytesIO()
    is_gray = image.ndim == 3 and image.shape[-1] == 1
    Image.fromarray(image[..., 0] if is_gray else image).save(content, "PNG")
    return content.getvalue()


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…"


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT_HEIGHT)


def _width(font: ImageFont.FreeTypeFont | ImageFont.ImageFont, text: str) -> int:
    return int(font.getlength(text)) + 1 if text else 0
