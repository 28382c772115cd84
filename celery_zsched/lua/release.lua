-- release: give claimed ids back, each to its own level and place in the order.
-- KEYS: leases claims bodies notes bell watch rules timelines...
-- ARGV: then three per item: id, token, how ('uncounted': as if never delivered, in its old place; 'counted': in its old
--       place, the delivery counts; '+N': counted, to be tried again in N microseconds; what it is due for stays)
-- RETURNS: the ids whose token is no longer current; nothing was changed for them. What was cancelled
--       while it was held is deleted
-- RULES: 1, 2, 4, 5, 7
-- @flags allow-oom
local leases, claims, bodies, notes, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local timelines = {unpack(KEYS, 8)}
local WIDTH = 3
-- @include clock record ring levels life

local stale = {}
for at = 1, #ARGV, WIDTH do
  local id, token, how = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local record = call('HGET', claims, id)
  if not holds(record, token) then
    stale[#stale + 1] = id
  elseif is_cancelled(record) then
    call('ZREM', leases, id)
    call('HDEL', claims, id)
    call('HDEL', bodies, id)
    call('HDEL', notes, id)
  else
    local _, count, level, due, holder = read_record(record)
    local moment = due
    if how == 'uncounted' then
      count = count - 1
    elseif how ~= 'counted' then
      moment = stamp(now + tonumber(string.sub(how, 2)))
    end
    call('ZREM', leases, id)
    call('ZADD', waits_at(level), moment, id)
    if count == 0 then
      call('HDEL', claims, id)
    else
      call('HSET', claims, id, write_record(voided(token), count, level, due, holder))
    end
    ring_for(tonumber(moment), bell, watch)
  end
end
live_as_before(rules)
return stale
