-- One row: the newest published version of the policy {name}; 0 when there is none.
SELECT max(version) FROM policies WHERE name = {name:String}
