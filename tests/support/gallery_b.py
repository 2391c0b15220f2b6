"""Programs of the gallery that work on texts, columns and series: what `test_gallery.py` trains."""

PROGRAMS = {
    "text_transformer": [],
    "mini_gpt": [],
    "structured_data": [],
    "recommender": [],
    "weather": [],
}
"""Program -> its recipes, if there are several."""
