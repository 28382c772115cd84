-- clock: the only clock there is. Stamps are microseconds; '%.0f' keeps all their digits (Lua's own formatting does not).
local call = redis.call

local function stamp(number)
  return string.format('%.0f', number)
end

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
