"""The shipped test kit: contract suites, fake guest programs, the simulated world."""
