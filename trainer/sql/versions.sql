-- One row per version of the policy that was ever recorded.
SELECT version, sha256 FROM policies FINAL WHERE name = {policy:String}
