"""The commands of Slurm on dgpu: small programs that `dgpu slurm-shims` installs."""
