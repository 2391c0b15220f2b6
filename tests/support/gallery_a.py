"""Programs of the gallery that work on images: what `test_gallery.py` trains of each."""

PROGRAMS = {
    "mnist_convnet": [],
    "cutmix": [],
    "transfer": ["transfer_base", "transfer_head", "transfer_fine_tune"],
    "vae": [],
    "wgan_gp": [],
    "distillation": ["distillation_teacher", "distillation"],
    "segmentation": [],
}
"""Program -> its recipes, if there are several: each begins with the weights of the one before."""
