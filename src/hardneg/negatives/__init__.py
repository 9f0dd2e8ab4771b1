"""Where negatives come from (sources), how sources are mixed, and the pools that hold each query's negatives."""
