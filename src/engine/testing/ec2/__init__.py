"""A cloud for tests: EC2 as it behaves, on this computer, with machines on paper or real ones behind it."""
