"""Durable storage: atomic files, the columnar container format, the checkpoint, result files and the code of UDFs."""
