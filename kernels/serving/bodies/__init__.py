"""From the JSON body of a simulation to its answer, one module for each simulator."""
