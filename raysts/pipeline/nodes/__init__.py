"""Steps of agreement and evaluation."""
