"""What datasets of images share: files, framing, decoding, normalization."""
