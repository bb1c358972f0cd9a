"""What crosses between trainer and service: vocabulary, tables, messages, mergeable values, the sender."""
