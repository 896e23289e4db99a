"""Secrets of tenants and values of variables: keys, sealing, opening."""
