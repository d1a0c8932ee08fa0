-- One row: the versions that optimiser steps made, each of which the engine has served.
SELECT count() FROM policies FINAL WHERE step_id != ''
