"""The report: what runs came to, as one HTML page that needs no network. No TensorFlow."""
