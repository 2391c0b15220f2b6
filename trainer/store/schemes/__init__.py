"""The object stores: a file for each scheme of an address, with the class `<Scheme>Store`."""
