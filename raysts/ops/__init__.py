"""The mathematics: tensors in, tensors out."""
