"""verl: probe and interventions inside its FSDP engine, loaded by verl itself through its entry point."""
