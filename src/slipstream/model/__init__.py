"""A model: its file, its tokenizer, its layers. Importing this package does not import torch."""
