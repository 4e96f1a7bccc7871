"""The papers' tables, published and measured."""
