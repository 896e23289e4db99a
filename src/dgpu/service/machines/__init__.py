"""Identity of machines: the cluster's certificate authority, the list of machines, the checks of their calls."""
