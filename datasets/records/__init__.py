"""What datasets of records share: files, their index, fields, and conversion."""
