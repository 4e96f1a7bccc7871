"""The experiment that asks how members are best made into one model."""
