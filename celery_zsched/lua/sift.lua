-- sift: park what waits for a task, due or not, a bounded part of one level at a time.
-- KEYS: claims bodies parked reasons rules timelines...
-- ARGV: task, level, from (the rank to begin at), limit
-- RETURNS: how many ids were looked at (fewer than there are if their bodies are long), how many of them were parked
-- RULES: 1, 2, 7
-- @flags allow-oom
local claims, bodies, parked, reasons, rules = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local timelines = {unpack(KEYS, 6)}
local task, level, from, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local MOST_BYTES = 1000000 -- of bodies, a call
-- @include clock record life part

local key = timelines[level + 1]
local ids, scores = part_of(key, from, limit)
if #ids == 0 then
  return {0, 0}
end
local held = call('HMGET', claims, unpack(ids))
local first_line = task .. '\n'
local taken, places, whys, records = {}, {}, {}, {}
local looked, bytes = 0, 0
for position, id in ipairs(ids) do
  local body = call('HGET', bodies, id)
  looked, bytes = position, bytes + (body and #body or 0)
  if body and string.sub(body, 1, #first_line) == first_line then
    local token, count, _, due, last = read_record(held[position])
    due = due or scores[position]
    taken[#taken + 1] = id
    places[#places + 1], places[#places + 2] = due, id
    whys[#whys + 1], whys[#whys + 2] = id, 'task:' .. task
    if held[position] or level > 0 then
      records[#records + 1], records[#records + 2] = id, write_record(voided(token), count, level, due, last)
    end
  end
  if bytes > MOST_BYTES then
    break
  end
end
if #taken > 0 then
  call('ZREM', key, unpack(taken))
  call('ZADD', parked, unpack(places))
  call('HSET', reasons, unpack(whys))
  if #records > 0 then
    call('HSET', claims, unpack(records))
  end
  live_as_before(rules)
end
return {looked, #taken}
