"""The guest agent, PID 1 in the sandbox. Standard library and torpor_wire only."""
