"""What datasets of tables share: files, columns, labels."""
