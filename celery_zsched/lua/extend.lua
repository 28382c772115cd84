-- extend: renew leases; each ends `lease` from now.
-- KEYS: leases claims
-- ARGV: lease (microseconds), then pairs id, token
-- RETURNS: the ids whose token is no longer current; nothing was changed for them
-- RULES: 2, 4
-- @flags allow-oom
local leases, claims = KEYS[1], KEYS[2]
local lease = tonumber(ARGV[1])
-- @include clock record

call('PERSIST', leases) -- changes nothing; Redis 6.2 lets a script go on at maxmemory if its first write takes no memory
local stale, ends = {}, {}
if #ARGV > 1 then
  local asked = {}
  for at = 2, #ARGV, 2 do
    asked[#asked + 1] = ARGV[at]
  end
  local held = call('HMGET', claims, unpack(asked))
  for position, id in ipairs(asked) do
    if holds(held[position], ARGV[position * 2 + 1]) then
      ends[#ends + 1] = stamp(now + lease)
      ends[#ends + 1] = id
    else
      stale[#stale + 1] = id
    end
  end
  if #ends > 0 then
    call('ZADD', leases, 'XX', unpack(ends))
  end
end
return stale
