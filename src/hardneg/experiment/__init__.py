"""An experiment's folder: settings, inputs, metrics, timing, results, and their checks."""
