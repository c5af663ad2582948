"""bench: what each stage and each placement costs on this machine and this file, beside what else one might use."""
