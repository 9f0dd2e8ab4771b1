"""Files in the formats that users have: one collection in every format, and sound files to damage."""
