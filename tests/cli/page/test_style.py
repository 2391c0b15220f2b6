"""The colors of the page: every text can be read in both themes."""
