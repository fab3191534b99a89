"""Other trainers' runs, read from the files that they wrote: curves, fits and comparisons."""
