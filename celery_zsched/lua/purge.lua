-- purge: delete what waits, due or not, a bounded number a call; what is leased, parked or dead stays.
-- KEYS: claims bodies notes bell timelines...
-- ARGV: limit
-- RETURNS: how many were deleted; fewer than limit: nothing waits any more
-- RULES: 1, 2, 7
-- @flags allow-oom
local claims, bodies, notes, bell = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local timelines = {unpack(KEYS, 5)}
local room = tonumber(ARGV[1])

local deleted = 0
for _, key in ipairs(timelines) do
  if deleted < room then
    local ids = redis.call('ZRANGE', key, 0, room - deleted - 1)
    if #ids > 0 then
      redis.call('ZREM', key, unpack(ids))
      for _, hash in ipairs({claims, bodies, notes}) do
        redis.call('HDEL', hash, unpack(ids))
      end
      deleted = deleted + #ids
    end
  end
end
if redis.call('EXISTS', bodies) == 0 then
  redis.call('DEL', bell)
end
return deleted
