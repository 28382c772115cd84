-- upcoming: one page of what waits, soonest first; changes nothing.
-- KEYS: bodies timelines...
-- ARGV: limit, after_due, after_id (the last item of the page before; '-inf' and '' for the first page)
-- RETURNS: four per item: id, due, level, body
-- RULES: 2
local bodies = KEYS[1]
local timelines = {unpack(KEYS, 2)}
local limit, after_due, after_id = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local STEP, STEPS_AT_MOST = 200, 50

-- Byte order, as in a sorted set; Lua's own comparison follows the server's locale.
local function before(a, b)
  for at = 1, math.min(#a, #b) do
    local left, right = string.byte(a, at), string.byte(b, at)
    if left ~= right then
      return left < right
    end
  end
  return #a < #b
end

-- Items of one moment are ordered by id, as the sorted set has them; those up to after_id were on an earlier page.
local function page(key, level, rows)
  local offset, kept = 0, 0
  for _ = 1, STEPS_AT_MOST do
    local found = redis.call('ZRANGEBYSCORE', key, after_due, '+inf', 'WITHSCORES', 'LIMIT', offset, STEP)
    for at = 1, #found, 2 do
      local id, due = found[at], found[at + 1]
      if kept < limit and not (due == after_due and not before(after_id, id)) then
        rows[#rows + 1] = {id, due, level}
        kept = kept + 1
      end
    end
    if kept >= limit or #found < STEP * 2 then
      break
    end
    offset = offset + STEP
  end
end

local rows = {}
for position, key in ipairs(timelines) do
  page(key, position - 1, rows)
end
table.sort(rows, function(a, b)
  local left, right = tonumber(a[2]), tonumber(b[2])
  if left ~= right then
    return left < right
  end
  return before(a[1], b[1])
end)
local answer = {}
for position = 1, math.min(limit, #rows) do
  local id, due, level = unpack(rows[position])
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3], answer[at + 4] = id, due, level, redis.call('HGET', bodies, id) or ''
end
return answer
