"""Writers: where what is reported goes while a run goes on. One file each, `summary.writers` names them. The chief alone writes."""
