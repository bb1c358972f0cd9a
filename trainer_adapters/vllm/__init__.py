"""vLLM: reading its rollouts, measuring them where they are sampled, DLC there (docs/trainers/vllm.md)."""
