"""Amazon EC2: spot and on-demand machines that start at once, fail over, and end with their pool."""
