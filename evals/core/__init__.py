"""Records, configuration, files, random streams and errors for all packages; imports none of them, and no torch."""
