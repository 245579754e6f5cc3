"""The test cloud, used as its users do: over its endpoint, by boto3."""
