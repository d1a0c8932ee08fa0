"""To be imported before torch: OpenMP reads its settings when it is loaded.

Its threads wait for each other by spinning. Where vLLM and agents use the same cores, a thread then spins through
the time slices that the one it waits for needs: an update took 9 to 31 s instead of 3 to 5 s on two busy cores.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
