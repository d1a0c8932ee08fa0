"""`tracegrad bench`: how fast the parts are on this machine, in front of stand-ins for what is slow by itself."""
