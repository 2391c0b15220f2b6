"""A differential fuzzer: random Keras programs, trained by `fit` and by Steadfast, and compared."""
