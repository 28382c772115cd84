-- settle: end the claims of the pairs id, token from ARGV[first] on; the ids are done and gone.
-- A token that is no longer current changes nothing; the ids of such pairs are returned.
local function settle(first)
  local stale = {}
  if first > #ARGV then
    return stale
  end
  local asked, done = {}, {}
  for at = first, #ARGV, 2 do
    asked[#asked + 1] = ARGV[at]
  end
  local held = call('HMGET', claims, unpack(asked))
  for position, id in ipairs(asked) do
    if holds(held[position], ARGV[first + position * 2 - 1]) then
      done[#done + 1] = id
    else
      stale[#stale + 1] = id
    end
  end
  if #done > 0 then
    call('ZREM', leases, unpack(done))
    call('HDEL', claims, unpack(done))
    call('HDEL', bodies, unpack(done))
    call('HDEL', notes, unpack(done))
  end
  return stale
end
