"""What travels with an exported model: these files import nothing of raysts."""
