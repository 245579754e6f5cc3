"""One program for each system, run by the Python of its own environment: ``python -m drivers.ray``."""
