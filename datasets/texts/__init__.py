"""What datasets of texts share: files and tokenizers."""
