"""Interventions on who samples: a memory of past rollouts, and the processor that subtracts it from the policy."""
