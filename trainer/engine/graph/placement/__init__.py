"""Models divided between the devices of one replica."""
