"""The guarantees' table as figures: the lab's scenarios, as often as wanted. Needs what the lab does."""
