"""What models of images ask of their shape."""

from __future__ import annotations


def require_images(
    model: str, shape: tuple[int, ...], *, multiple_of: int = 1
) -> tuple[int, int, int]:
    """Return (height, width, channels).

    Args:
        model: name of the model, for the message.
        shape: shape of one example.
        multiple_of: what the sides must be multiples of.

    Raises:
        ValueError: it is another shape.
    """
    if len(shape) != 3 or shape[0] % multiple_of or shape[1] % multiple_of:
        sides = f" whose sides are multiples of {multiple_of}" if multiple_of > 1 else ""
        raise ValueError(
            f"{model} takes images [height, width, channels]{sides}, the dataset gives "
            f"{list(shape)}; choose another model, or add dataset.image_size=[<height>,<width>]"
        )
    return shape[0], shape[1], shape[2]
