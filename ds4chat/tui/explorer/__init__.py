"""The parts of the confidence explorer: filter line, table, charts, what-if."""
