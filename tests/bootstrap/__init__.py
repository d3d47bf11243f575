"""A package, so that the names of its modules cannot collide with those of other test folders."""
