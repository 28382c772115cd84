-- free: put back what is parked for one reason, oldest first, a bounded part at a time, each to its level and moment.
-- KEYS: claims parked reasons bell watch rules timelines...
-- ARGV: reason, from (the rank among the parked to begin at), limit
-- RETURNS: how many ids were looked at, how many of them were put back
-- RULES: 1, 2, 5, 7
-- @flags allow-oom
local claims, parked, reasons, bell, watch, rules = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local timelines = {unpack(KEYS, 7)}
local reason, from, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- @include clock record ring levels life part

local ids, scores = part_of(parked, from, limit)
if #ids == 0 then
  return {0, 0}
end
local whys, held = call('HMGET', reasons, unpack(ids)), call('HMGET', claims, unpack(ids))
local back, forgotten, waits, soonest = {}, {}, {}, nil
for position, id in ipairs(ids) do
  if whys[position] == reason then
    local _, count, level = read_record(held[position])
    back[#back + 1] = id
    if held[position] and count == 0 then
      forgotten[#forgotten + 1] = id
    end
    local rows = waits[level] or {}
    waits[level] = rows
    rows[#rows + 1], rows[#rows + 2] = scores[position], id
    soonest = soonest or tonumber(scores[position])
  end
end
if #back > 0 then
  call('ZREM', parked, unpack(back))
  call('HDEL', reasons, unpack(back))
  if #forgotten > 0 then
    call('HDEL', claims, unpack(forgotten))
  end
  for level, rows in pairs(waits) do
    call('ZADD', waits_at(level), unpack(rows))
  end
  ring_for(soonest, bell, watch)
  live_as_before(rules)
end
return {#ids, #back}
