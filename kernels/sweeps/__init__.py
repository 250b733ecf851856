"""A run with some of its fields varied: the points that it makes, and how figures grow along them."""
