"""Operations, memory and throughput of models."""
