-- One row: how many rewards of the name, by this source, the store shows from a time (ns since 1970) on.
SELECT count()
FROM rewards
WHERE name = {name:String}
    AND source = {source:String}
    AND at >= fromUnixTimestamp64Nano({since_ns:Int64})
