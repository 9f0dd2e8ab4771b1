"""The files that people have: one collection in every format, and sound files to damage."""
