"""What datasets of records share: files, their index and fields."""
