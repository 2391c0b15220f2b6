"""Points as jobs of one of Hydra's launchers."""
